"""One engine for experiments, maps and audits: of all cells, it computes those that are missing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from ..storage import INVALID_STATE, Directory, StoreError

MOST_CELLS = 100_000  # of one grid

Record = Any  # what a cell leaves behind; `Directory.write_cell` takes it
Tick = Callable[[int], None]


class Named(Protocol):
    """A cell, as the engine sees it: a file of this name holds its record."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str:
        """Its name in progress reports."""

    @property
    def slow(self) -> bool:
        """Whether it is begun before others where several processes share the work."""


C = TypeVar("C", bound=Named)
Contra = TypeVar("Contra", bound=Named, contravariant=True)


class Work(Protocol[Contra]):
    """How the cells of a grid are computed; where processes do that, each has a copy of this."""

    def refuse(self, directory: Path, name: str, record: Any, cell: Contra | None) -> str | None:
        """Why a finished record does not belong here, in a sentence; None if it does.

        Args:
            name: of its file in the directory.
            cell: the one of that name, where there is one.
        """

    def prepare(self, say: Callable[[str], None]) -> None:
        """Get what all cells need; called only if one is to be computed."""

    def compute(self, cell: Contra, store: Any, tick: Tick) -> Record:
        """Compute a cell; its record is then in the store. `tick` hears how many steps it took."""

    def memory(self) -> int:
        """Bytes that a cell needs, roughly."""

    @property
    def device(self) -> torch.device:
        """Where cells are computed."""


@dataclass
class Report:
    """What is called while a run goes on; the command line shows it."""

    begin: Callable[[int, int], None] = lambda finished, total: None
    start: Callable[[Any], None] = lambda cell: None
    tick: Tick = lambda steps: None
    done: Callable[[Any, Record], None] = lambda cell, record: None
    say: Callable[[str], None] = lambda text: None


def counting(tell: Callable[[int, int, str], None]) -> Report:
    """A report to `tell(done, total, text)`: before each cell, and at the end."""
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
    """Where cells are computed: here, in processes, on a cluster."""

    def launch(
        self, cells: Sequence[C], work: Work[C], store: Any, report: Report
    ) -> Iterator[tuple[C, Record]]:
        """Finished cells as they come, each already in the store."""


def unfinished(cells: Sequence[C], work: Work[C], store: Directory) -> list[C]:
    """Cells without a readable result; a directory with anything else in it is refused."""
    expected, finished = {cell.name: cell for cell in cells}, store.finished()
    for name, record in finished.items():
        try:
            problem = work.refuse(store.directory, name, record, expected.get(name))
        except INVALID_STATE as error:  # whole, but nothing that was ever written here
            raise StoreError(
                f"{store.cell_path(name)} makes no sense ({error!r}): delete it"
            ) from None
        if problem is not None:
            raise StoreError(problem)
    return [cell for cell in cells if cell.name not in finished]


def run_cells(
    cells: Sequence[C], work: Work[C], store: Directory, launcher: Launcher, report: Report
) -> int:
    """Compute the missing cells; returns how many were computed."""
    store.prepare()
    with store.lock():
        missing = unfinished(cells, work, store)
        waiting = {cell.name for cell in missing}
        for cell in cells:
            # an earlier run may have been killed between writing a cell and tidying up
            store.tidy(cell.name, finished=cell.name not in waiting)
        if missing:
            work.prepare(report.say)
        report.begin(len(cells) - len(missing), len(cells))
        for cell, record in launcher.launch(missing, work, store, report):
            report.done(cell, record)
    return len(missing)


def refuse_too_many(cells: int) -> None:
    """Refuse a grid of more than `MOST_CELLS`, before anything is drawn or counted."""
    if cells > MOST_CELLS:
        raise ValueError(
            f"at most {MOST_CELLS:,} cells at once, got {cells:,}: ask for fewer orders or seeds"
        )
