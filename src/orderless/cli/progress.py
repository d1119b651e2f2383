"""Progress of long commands: a bar with the time left, or plain lines; warnings once."""

import re
import sys
import time
from datetime import timedelta
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn

from ..text import printable


class Countdown:
    """Shows progress in items or `bytes`: bars on a terminal, or a line `every` 5 seconds."""

    def __init__(self, *, bytes: bool = False, every: float = 5.0) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn() if bytes else MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bytes = bytes
        self._every = every
        self._begun: dict[str, tuple[Any, float, int]] = {}  # bar, start time, items at the start
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def tell(
        self, done: int, total: int | None, text: str, *, name: str = "", before: str = ""
    ) -> None:
        """Show `done` of `total` on the bar of this `name`; `before` precedes the time left."""
        now = time.monotonic()
        if name not in self._begun:
            bar = self._bar.add_task(text, total=total, completed=done, left="")
            self._begun[name] = bar, now, done
        bar, begun, first = self._begun[name]
        self.left = ""
        if total is not None and done > first:  # at the speed so far
            seconds = round((now - begun) / (done - first) * max(0, total - done))
            self.left = f"time left: {timedelta(seconds=seconds)}"
        shown = f"{before}{self.left}"
        self._bar.update(bar, completed=done, total=total, description=text, left=shown)
        if not self._console.is_terminal and done != total and now - self._said >= self._every:
            self._said = now
            known = [count for count in (done, total) if count is not None]
            counted = "/".join(
                f"{count / 1e6:.1f} MB" if self._bytes else str(count) for count in known
            )
            parts = [f"[{counted}] {text}", self.left]
            print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)


class OnceOfAKind:
    """Prints a warning once, although a command may give it many times with other numbers.

    A category of warnings with `numbers_tell_apart` has another subject for other numbers.
    """

    def __init__(self) -> None:
        self.said: set[str] = set()

    def __call__(self, message: Warning | str, *where: Any, **more: Any) -> None:
        kind = str(message)
        if not getattr(message, "numbers_tell_apart", False):
            kind = re.sub(r"[0-9]+", "0", kind)
        if kind not in self.said:
            self.said.add(kind)
            text = printable(str(message))
            print(f"orderless: warning (said once): {text}", file=sys.stderr)
