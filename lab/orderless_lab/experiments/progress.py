"""Progress of long commands: a bar with the time left, or plain lines; warnings once."""

import math
import re
import sys
import time
from datetime import timedelta
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn

from .cell import Cell
from .engine import Report
from .record import CellRecord
from .store import DamagedFile


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
        self._bytes, self._every = bytes, every
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
        self.left = "time left: ?"
        if total is not None and done > first:  # at the speed so far
            seconds = round((now - begun) / (done - first) * max(0, total - done))
            self.left = f"time left: {timedelta(seconds=seconds)}"
        shown = f"{before}{self.left}"
        self._bar.update(bar, completed=done, total=total, description=text, left=shown)
        if not self._console.is_terminal and done != total and now - self._said >= self._every:
            self._said = now
            known = [n for n in (done, total) if n is not None]
            counted = "/".join(f"{n / 1e6:.1f} MB" if self._bytes else str(n) for n in known)
            print(f"[{counted}] {text}, {self.left}", file=sys.stderr, flush=True)


class GridProgress(Countdown, Report):
    """The `report` of `run_grid`: a bar, or a line for every cell; `label` precedes its name."""

    def __init__(self, label: str = "") -> None:
        super().__init__(every=math.inf)
        self._label = f"{label}: " if label else ""
        self._finished = self._total = self._steps = 0
        self._text = ""

    def begin(self, finished: int, total: int) -> None:
        self._finished, self._total = finished, total
        self.tell(finished, total, "")  # starts the clock after the preparation

    def start(self, cell: Cell) -> None:
        self._steps, self._text = 0, f"{self._label}{cell.title}"
        self.tell(self._finished, self._total, self._text)

    def tick(self, steps: int) -> None:
        before, self._steps = self._steps, self._steps + steps
        if before // 50 != self._steps // 50:
            step = f"step {self._steps}, "
            self.tell(self._finished, self._total, self._text, before=step)

    def done(self, cell: Cell, record: CellRecord) -> None:
        self._finished += 1
        name = f"{self._label}{cell.title}"
        self.tell(self._finished, self._total, name)
        if not self._console.is_terminal:
            final = record.final()
            average = float("nan") if final is None else final.mean()
            returns, died = record.score_kind == "return", record.died_at
            score = f"return {average:.3f}" if returns else f"average {100 * average:.2f}"
            broken = "" if died is None else f"no finite network left at step {died}, "
            place = f"[{self._finished}/{self._total}] {name}"
            self.say(f"{place}: {score}, {broken}{record.duration:.1f} s, {self.left}")

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


class OnceOfAKind:
    """Prints a warning once, although all cells of a grid may give it with other numbers."""

    def __init__(self) -> None:
        self.said: set[str] = set()

    def __call__(self, message: Warning | str, *where: Any, **more: Any) -> None:
        kind = str(message)
        if not isinstance(message, DamagedFile):
            kind = re.sub(r"[0-9]+", "0", kind)
        if kind not in self.said:
            self.said.add(kind)
            print(f"orderless: warning (said once): {message}", file=sys.stderr)
