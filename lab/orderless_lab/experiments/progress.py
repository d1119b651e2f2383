"""Progress of a grid: a bar, or a line for every cell."""

import math

from orderless.cli.progress import Countdown

from .cell import Cell
from .engine import Report
from .record import CellRecord


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
            text = f"{self._text}, step {self._steps}"
            self.tell(self._finished, self._total, text)

    def done(self, cell: Cell, record: CellRecord) -> None:
        self._finished += 1
        name = f"{self._label}{cell.title}"
        self.tell(self._finished, self._total, name)
        if not self.on_a_terminal:
            final = record.final()
            average = float("nan") if final is None else final.mean()
            returns, died = record.score_kind == "return", record.died_at
            score = f"return {average:.3f}" if returns else f"average {100 * average:.2f}"
            broken = "" if died is None else f"no finite network left at step {died}, "
            place = f"[{self._finished}/{self._total}] {name}"
            self.say(f"{place}: {score}, {broken}{record.duration:.1f} s{self.left}")
