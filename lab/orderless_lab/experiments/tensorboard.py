"""Scalars for TensorBoard while a cell is computed: DIR/tensorboard/CELL."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runner import CellProgress


def summary_writer() -> Any:
    """torch's `SummaryWriter`; raises `ValueError` if tensorboard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(
            f"--tensorboard needs the package tensorboard ({error}): "
            "pip install 'orderless[tensorboard]'"
        ) from None
    return SummaryWriter


class CellLog:
    """Logs the progress of a cell: its trace by step, its scores after every task.

    The log of a resumed cell is written again from the beginning, so no step is logged twice. The
    tags of the scores have the names `tasks`; `steps` are the numbers of steps of the stages.
    """

    def __init__(self, folder: Path, tasks: Sequence[str], steps: Sequence[int]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = summary_writer()(str(folder))
        self._tasks, self._ends = tasks, [0, *accumulate(steps)]
        self._traced, self._scored = 0, 0
        self.close = self._writer.close

    def update(self, progress: CellProgress) -> None:
        """Write what is new."""
        steps = progress.trace.get("step", [])
        for place in range(self._traced, len(steps)):
            for name, values in progress.trace.items():
                if name != "step":
                    self._writer.add_scalar(name, values[place], steps[place])
        self._traced = len(steps)
        rows = max((len(rows) for rows in progress.scores.values()), default=0)
        for name, scores in progress.scores.items():
            for row in range(self._scored, rows):
                # joint training has one stage, and empty rows between the first and the last
                step = self._ends[min(row, len(self._ends) - 1)]
                for task, score in zip(self._tasks, scores[row], strict=True):
                    if score is not None:
                        self._writer.add_scalar(f"{name}/{task}", score, step)
        self._scored = rows
        self._writer.flush()
