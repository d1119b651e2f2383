"""The engine of experiments, maps and audits: computes the missing cells of a directory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from orderless.io import INVALID_STATE
from orderless_lab.storage import Directory, StoreError

MOST_CELLS = 100_000  # of one grid

Record = Any  # the result of a cell, as `Directory.write_cell` accepts it
Tick = Callable[[int], None]


class Named(Protocol):
    """What the engine needs of a cell."""

    @property
    def name(self) -> str:
        """The name of its record's file."""

    @property
    def title(self) -> str:
        """Its name in progress reports."""

    @property
    def slow(self) -> bool:
        """Whether parallel runs start it first."""


C = TypeVar("C", bound=Named)
Contra = TypeVar("Contra", bound=Named, contravariant=True)


class Work(Protocol[Contra]):
    """How the cells of a grid are computed. Every worker process has a copy."""

    def refuse(self, directory: Path, name: str, record: Any, cell: Contra | None) -> str | None:
        """Why the finished record `name` is not of this grid, or not of `cell`; None if it is."""

    def prepare(self, say: Callable[[str], None]) -> None:
        """Prepare what all cells need; called only if a cell is to be computed."""

    def compute(self, cell: Contra, store: Any, tick: Tick) -> Record:
        """Compute a cell and write its record to the store; call `tick` with numbers of steps."""

    def memory(self) -> int:
        """Approximate bytes that a cell needs."""

    @property
    def device(self) -> torch.device:
        """The device that computes the cells."""


@dataclass
class Report:
    """Functions that are called during a run, such as those of a progress bar."""

    begin: Callable[[int, int], None] = lambda finished, total: None
    start: Callable[[Any], None] = lambda cell: None
    tick: Tick = lambda steps: None
    done: Callable[[Any, Record], None] = lambda cell, record: None
    say: Callable[[str], None] = lambda text: None


def counting(tell: Callable[[int, int, str], None]) -> Report:
    """A report that calls `tell(done, total, text)` before each cell, and at the end."""
    done, total = 0, 0

    def begin(finished: int, wanted: int) -> None:
        nonlocal done, total
        done, total = finished, wanted
        if done == total:
            tell(done, total, "done")

    def end(cell: Any, record: Record) -> None:
        begin(done + 1, total)

    return Report(begin, lambda cell: tell(done, total, cell.title), done=end)


class Launcher(Protocol):
    """Computes cells: in this process, in several processes, or on a cluster."""

    def launch(
        self, cells: Sequence[C], work: Work[C], store: Any, report: Report
    ) -> Iterator[tuple[C, Record]]:
        """Yield finished cells; their records are already in the store."""


def unfinished(cells: Sequence[C], work: Work[C], store: Directory) -> list[C]:
    """The cells without a readable record; raises `StoreError` for records of another grid."""
    expected, finished = {cell.name: cell for cell in cells}, store.finished()
    for name, record in finished.items():
        try:
            problem = work.refuse(store.directory, name, record, expected.get(name))
        except INVALID_STATE as error:  # intact, but not written by this package
            problem = f"{store.cell_path(name)} makes no sense ({error!r}): delete it"
        if problem is not None:
            raise StoreError(problem)
    return [cell for cell in cells if cell.name not in finished]


def run_cells(
    cells: Sequence[C], work: Work[C], store: Directory, launcher: Launcher, report: Report
) -> int:
    """Compute the missing cells; returns their number."""
    store.prepare()
    with store.lock():
        missing = unfinished(cells, work, store)
        waiting = {cell.name for cell in missing}
        for cell in cells:
            # an earlier run may have been killed after writing a cell, before tidying up
            store.tidy(cell.name, finished=cell.name not in waiting)
        if missing:
            work.prepare(report.say)
        report.begin(len(cells) - len(missing), len(cells))
        for cell, record in launcher.launch(missing, work, store, report):
            report.done(cell, record)
    return len(missing)


def refuse_too_many(cells: int) -> None:
    """Raise `ValueError` for more than `MOST_CELLS` cells."""
    if cells > MOST_CELLS:
        raise ValueError(
            f"at most {MOST_CELLS:,} cells at once, got {cells:,}: ask for fewer orders or seeds"
        )
