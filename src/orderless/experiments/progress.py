"""What a run says: one bar over all cells with the time left, or plain lines; warnings once."""

from __future__ import annotations

import re
import sys
import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .cell import Cell
from .grid import Report


class GridProgress:
    """A context manager whose `report` goes to `run_grid`."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._begun = time.monotonic()
        self._finished = self._first = self._total = self._steps = 0
        self._task: Any = None
        self.report = Report(self._begin, self._start, self._tick, self._done)

    def __enter__(self) -> GridProgress:
        self._bar.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bar.stop()

    def _begin(self, finished: int, total: int) -> None:
        self._finished = self._first = finished
        self._total = total
        self._task = self._bar.add_task("", total=total, completed=finished, left="")

    def _start(self, cell: Cell) -> None:
        self._steps = 0
        self._bar.update(self._task, description=_name(cell))

    def _tick(self, steps: int) -> None:
        self._steps += steps
        if self._steps % 50 == 0:
            self._bar.update(self._task, left=f"step {self._steps}, {self._left()}")

    def _done(self, cell: Cell, record: dict[str, Any]) -> None:
        self._finished += 1
        self._bar.update(
            self._task, description=_name(cell), completed=self._finished, left=self._left()
        )
        if not self._console.is_terminal:
            final = record["scores"]["accuracy"][-1]
            average = sum(final) / len(final)
            self._console.print(
                f"[{self._finished}/{self._total}] {_name(cell)}: average {100 * average:.2f}, "
                f"{_broken(record)}{record['duration']:.1f} s, {self._left()}",
                highlight=False,
                soft_wrap=True,
            )

    def _left(self) -> str:
        done = self._finished - self._first
        if done < 1:
            return "time left: ?"
        spent = time.monotonic() - self._begun
        seconds = spent / done * (self._total - self._finished)
        return f"time left: {timedelta(seconds=round(seconds))}"


def _broken(record: dict[str, Any]) -> str:
    step = record["died_at"]
    return "" if step is None else f"no finite network left at step {step}, "


def _name(cell: Cell) -> str:
    return f"{cell.method} order {cell.order_index} seed {cell.seed}"


class OnceOfAKind:
    """Says a warning the first time: the next, with other numbers in it, is no news.

    A grid of a thousand cells may have the same to say about each.
    """

    def __init__(self) -> None:
        self.said: set[str] = set()

    def __call__(self, message: Warning | str, *where: Any, **more: Any) -> None:
        kind = re.sub(r"[0-9]+", "0", str(message))
        if kind not in self.said:
            self.said.add(kind)
            print(f"orderless: warning (said once): {message}", file=sys.stderr)
