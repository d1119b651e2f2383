"""Progress of long commands: a line that is written over, or some lines; warnings once."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from ..errors import printable

if TYPE_CHECKING:
    from ..heads.files import Files

WIDTH = 100  # of the line on a terminal


class Countdown:
    """Shows progress: on a terminal at once, elsewhere `every` 5 seconds."""

    def __init__(self, *, every: float = 5.0) -> None:
        self.on_a_terminal = sys.stderr.isatty()
        self.left = ""
        self._every = 0.1 if self.on_a_terminal else every
        self._said = time.monotonic()
        self._begun = self._said
        self._first = 0
        self._done = math.inf  # nothing has begun

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.on_a_terminal:
            self._write("")

    def tell(self, done: int, total: int | None, text: str) -> None:
        """Show `done` of `total` items. What was done at first took no time; if fewer are done than
        before, something else has begun."""
        now = time.monotonic()
        if done < self._done:
            self._begun = now
            self._first = done
        self._done = done
        self.left = ""
        if total is not None and done > self._first:  # at the speed so far
            seconds = round((now - self._begun) / (done - self._first) * max(0, total - done))
            self.left = f", time left: {timedelta(seconds=seconds)}"
        if done == total or now - self._said < self._every:
            return
        self._said = now
        count = done if total is None else f"{done}/{total}"
        line = f"[{count}] {text}{self.left}"
        if self.on_a_terminal:
            self._write(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def of(self, files: Files) -> Callable[[float], None]:
        """A function that tells how many samples of a user's files are done."""
        from ..heads.files import count_rows

        total = len(files.paths) if files.images else sum(map(count_rows, files.paths))
        self.tell(0, total, str(files.root))  # starts the clock
        return lambda done: self.tell(int(done), total, str(files.root))

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
            print(f"orderless: warning (said once): {printable(str(message))}", file=sys.stderr)
