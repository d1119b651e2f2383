"""What long work says: a bar with the time left, or plain lines; warnings once."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from .engine import Report
from .launch.ranks import rank
from .record import CellRecord
from .runner import Cell
from .store import DamagedFile


class Bars:
    """A context manager with bars on the terminal; where there is none, nothing is drawn."""

    def __init__(self, *columns: ProgressColumn, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()


class Countdown(Bars):
    """Counts anything towards a total: a bar, or where there is no terminal a line now and then.

    Args:
        bytes: what is counted are bytes.
        every: seconds between plain lines.
    """

    def __init__(self, *, bytes: bool = False, every: float = 5.0) -> None:
        super().__init__(DownloadColumn() if bytes else MofNCompleteColumn())
        self._bytes, self._every = bytes, every
        self._begun: dict[str, tuple[Any, float, int]] = {}  # bar, when and with how many it began
        self._said = time.monotonic()

    def tell(self, done: int, total: int | None, text: str, *, name: str = "") -> None:
        """`done` of `total`, and what comes now; one bar for every `name`."""
        now = time.monotonic()
        if name not in self._begun:
            bar = self._bar.add_task(text, total=total, completed=done, left="")
            self._begun[name] = bar, now, done
        bar, begun, first = self._begun[name]
        left = time_left(now - begun, done - first, None if total is None else total - done)
        self._bar.update(bar, completed=done, total=total, description=text, left=left)
        if not self._console.is_terminal and done != total and now - self._said >= self._every:
            self._said = now
            known = [n for n in (done, total) if n is not None]
            counted = "/".join(f"{n / 1e6:.1f} MB" if self._bytes else str(n) for n in known)
            print(f"[{counted}] {text}, {left}", file=sys.stderr, flush=True)


def time_left(spent: float, done: int, to_do: int | None) -> str:
    """At the speed so far."""
    if done < 1 or to_do is None:
        return "time left: ?"
    return f"time left: {timedelta(seconds=round(spent / done * max(0, to_do)))}"


class GridProgress(Bars):
    """A context manager whose `report` goes to `run_grid`; `label` stands before every name."""

    def __init__(self, label: str = "") -> None:
        super().__init__(MofNCompleteColumn(), TimeElapsedColumn(), quiet=rank() > 0)
        self._label = f"{label}: " if label else ""
        self._begun = time.monotonic()
        self._finished = self._first = self._total = self._steps = 0
        self._task: Any = None
        self.report = Report(self._begin, self._start, self._tick, self._done, self._say)

    def _begin(self, finished: int, total: int) -> None:
        self._begun = time.monotonic()  # what was prepared before, data say, is not in every cell
        self._finished = self._first = finished
        self._total = total
        self._task = self._bar.add_task("", total=total, completed=finished, left="")

    def _start(self, cell: Cell) -> None:
        self._steps = 0
        self._bar.update(self._task, description=self._name(cell))

    def _tick(self, steps: int) -> None:
        before, self._steps = self._steps, self._steps + steps
        if before // 50 != self._steps // 50:
            self._bar.update(self._task, left=f"step {self._steps}, {self._left()}")

    def _done(self, cell: Cell, record: CellRecord) -> None:
        self._finished += 1
        self._bar.update(
            self._task, description=self._name(cell), completed=self._finished, left=self._left()
        )
        if not self._console.is_terminal:
            final = record.final()
            average = float("nan") if final is None else final.mean()
            returns, died = record.score_kind == "return", record.died_at
            score = f"return {average:.3f}" if returns else f"average {100 * average:.2f}"
            broken = "" if died is None else f"no finite network left at step {died}, "
            self._say(
                f"[{self._finished}/{self._total}] {self._name(cell)}: {score}, "
                f"{broken}{record.duration:.1f} s, {self._left()}"
            )

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _name(self, cell: Cell) -> str:
        return f"{self._label}{cell.title}"

    def _left(self) -> str:
        spent, done = time.monotonic() - self._begun, self._finished - self._first
        return time_left(spent, done, self._total - self._finished)


@contextmanager
def reporting(label: str) -> Iterator[Report]:
    """The report of one grid among several."""
    with GridProgress(label) as progress:
        yield progress.report


class OnceOfAKind:
    """Says a warning the first time: the next, with other numbers in it, is no news.

    A grid of a thousand cells may have the same to say about each.
    """

    def __init__(self) -> None:
        self.said: set[str] = set()

    def __call__(self, message: Warning | str, *where: Any, **more: Any) -> None:
        kind = str(message)
        if not isinstance(message, DamagedFile):
            kind = re.sub(r"[0-9]+", "0", kind)
        if rank() == 0 and kind not in self.said:
            self.said.add(kind)
            print(f"orderless: warning (said once): {message}", file=sys.stderr)
