"""Progress of a run: a bar, or a line for every cell."""

from __future__ import annotations

import math

from orderless.cli.progress import Countdown

from .cell import Cell, CellRecord
from .launch import Listener


class RunProgress(Countdown, Listener):
    """The `listener` of a run: a bar, or a line for every cell. The time left appears with the
    first finished cell."""

    def __init__(self) -> None:
        super().__init__(every=math.inf)
        self._finished = 0
        self._total = 0
        self._steps = 0
        self._title = ""

    def begin(self, finished: int, total: int) -> None:  # type: ignore[override]
        self._finished = finished
        self._total = total
        self.tell(finished, total, "")  # starts the clock after the preparation

    def start(self, cell: Cell) -> None:  # type: ignore[override]
        self._steps = 0
        self._title = title(cell)
        self.tell(self._finished, self._total, self._title)

    def tick(self, steps: int) -> None:  # type: ignore[override]
        before = self._steps
        self._steps += steps
        if before // 50 != self._steps // 50:
            self.tell(self._finished, self._total, f"{self._title}, step {self._steps}")

    def done(self, cell: Cell, record: CellRecord) -> None:  # type: ignore[override]
        self._finished += 1
        self.tell(self._finished, self._total, title(cell))
        if self.on_a_terminal:
            return
        final = record.final()
        average = math.nan if final is None else final.mean()
        score = f"return {average:.3f}"
        if record.unit == "accuracy":
            score = f"average {100 * average:.2f}"
        if record.died_at is not None:
            score += f", no finite network left at step {record.died_at}"
        place = f"[{self._finished}/{self._total}] {title(cell)}"
        self.say(f"{place}: {score}, {record.duration:.1f} s{self.left}")


def title(cell: Cell) -> str:
    return f"{cell.variant}: {cell.title}"
