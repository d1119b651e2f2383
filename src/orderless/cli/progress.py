"""Progress of long commands: a line that is written over, or some lines; warnings once."""

import re
import sys
import time
from datetime import timedelta
from typing import Any, Self

from ..text import printable

WIDTH = 100  # of the line on a terminal


class Countdown:
    """Shows progress in items or `bytes`, on a terminal at once, elsewhere `every` 5 seconds."""

    def __init__(self, *, bytes: bool = False, every: float = 5.0) -> None:
        self.on_a_terminal = sys.stderr.isatty()
        self.left = ""
        self._bytes = bytes
        self._every = 0.1 if self.on_a_terminal else every
        self._begun: dict[str, tuple[float, int]] = {}  # start time, items at the start
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.on_a_terminal:
            self._write("")

    def tell(
        self, done: int, total: int | None, text: str, *, name: str = "", before: str = ""
    ) -> None:
        """Show `done` of `total` items of this `name`; `before` precedes the time left."""
        now = time.monotonic()
        begun, first = self._begun.setdefault(name, (now, done))
        self.left = ""
        if total is not None and done > first:  # at the speed so far
            seconds = round((now - begun) / (done - first) * max(0, total - done))
            self.left = f"time left: {timedelta(seconds=seconds)}"
        if done == total or now - self._said < self._every:
            return
        self._said = now
        known = [count for count in (done, total) if count is not None]
        texts = [f"{count / 1e6:.1f} MB" if self._bytes else str(count) for count in known]
        line = ", ".join(filter(None, [f"[{'/'.join(texts)}] {text}", f"{before}{self.left}"]))
        if self.on_a_terminal:
            self._write(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self.on_a_terminal:
            self._write("")
        print(text, file=sys.stderr, flush=True)

    def _write(self, line: str) -> None:
        """Write over the line on the terminal."""
        print(f"\r{line[:WIDTH]:{WIDTH}}\r", end="", file=sys.stderr, flush=True)


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
