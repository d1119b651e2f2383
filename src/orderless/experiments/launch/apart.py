"""The tasks of cells side by side, where there are fewer cells than workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..cell import Part
from ..engine import MOST_CELLS, Record, Report, Work
from .local import Processes
from .ray import Ray


@dataclass(frozen=True)
class TasksApart:
    """First the tasks of cells whose tasks need nothing of each other, and the other cells; then
    those cells, which take over what they find (`SupervisedRunner._join`). The same bits as whole
    cells, since every task starts from the same networks."""

    launcher: Processes | Ray

    def launch(
        self, cells: Sequence[Any], work: Work[Any], store: Any, report: Report
    ) -> Iterator[tuple[Any, Record]]:
        divided = [cell for cell in cells if cell.parts()]
        with self.launcher.connected():
            if divided and len(cells) < self.launcher.count(MOST_CELLS, work):
                jobs: list[Any] = [part for cell in divided for part in cell.parts()]
                jobs += [cell for cell in cells if cell not in divided]
                for job, record in self.launcher.launch(jobs, work, store, report):
                    if not isinstance(job, Part):
                        yield job, record
                cells = divided
            yield from self.launcher.launch(cells, work, store, report)
