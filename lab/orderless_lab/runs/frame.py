"""All cells of a run directory, and one tidy table of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from .cell import CellRecord, Table, problem
from .store import StoreError, read_cell

if TYPE_CHECKING:
    import pandas as pd

OF_CELLS = ("benchmark", "variant", "preset", "method", "seed", "order_index", "unit")
NUMBERS = ("particles", "log_evidence", "temperature", "alive", "died_at", "duration")


@dataclass(frozen=True)
class Run:
    """All finished cells of a run directory, sorted by `CellRecord.identity`."""

    directory: Path
    cells: tuple[CellRecord, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row per cell and task: what was run, and the scores; `place` is the task's, from 1.

        `score` is after the last task, `just_learned` right after its own, `untrained` before all.
        """
        import pandas as pd

        return pd.concat([tidy(cell) for cell in self.cells], ignore_index=True)


def tidy(cell: CellRecord) -> pd.DataFrame:
    """One row per task of a cell."""
    import pandas as pd

    matrix = cell.matrix()
    assert matrix is not None  # a record without it is not read
    tasks = np.arange(len(cell.order))
    place = np.argsort(cell.order) + 1
    names = cell.task_names or [f"task {task}" for task in tasks]
    columns: dict[str, Any] = {name: getattr(cell, name) for name in OF_CELLS + NUMBERS}
    columns |= {
        "task": tasks,
        # a Series of objects: pandas' own strings refuse half of a surrogate pair
        "task_name": pd.Series(names, dtype=object),
        "place": place,
        "score": matrix[-1],
        "just_learned": matrix[place, tasks],
        "untrained": matrix[0],
    }
    for name in ("logits", "probs"):
        columns[name] = cell.final(name)
    for name in ("nll", "ece"):
        columns[name] = getattr(cell, name)
    return pd.DataFrame(columns)


def load_run(
    directory: str | Path, *, tell: Callable[[int, int], None] = lambda done, total: None
) -> Run:
    """Read and check all files of `directory/cells`; a `StoreError` names the file and the problem.

    `tell` is called with (files read, all files).
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise StoreError(f"{directory} is not a directory.")
    paths = sorted((directory / "cells").glob("*.json"))
    cells = []
    for done, path in enumerate(paths):
        tell(done, len(paths))
        cells.append(_read(path))
    if not cells:
        raise StoreError(f"{directory} holds no finished cells; run `orderless run` into it first.")
    cells.sort(key=lambda cell: cell.identity)
    _refuse_contradictions(directory, cells)
    return Run(directory, tuple(cells))


def _read(path: Path) -> CellRecord:
    try:
        return CellRecord.model_validate(read_cell(path))
    except ValidationError as error:
        raise StoreError(f"{path} is not a cell of an experiment: {problem(error)}.") from None
    except (OSError, ValueError) as error:
        where = "" if str(path) in str(error) else f"{path} cannot be read: "
        raise StoreError(f"{where}{error}.") from error


def _refuse_contradictions(directory: Path, cells: Iterable[CellRecord]) -> None:
    orders: dict[tuple[Table, int], list[int]] = {}
    for earlier, later in itertools.pairwise(cells):
        if earlier.identity == later.identity:
            raise StoreError(
                f"Two cells in {directory} hold {later.method}, order {later.order_index}, "
                f"seed {later.seed} of {' '.join(later.table)}; keep one of them."
            )
    for cell in cells:
        known = orders.setdefault((cell.table, cell.order_index), cell.order)
        if known != cell.order:
            raise StoreError(
                f"Order {cell.order_index} is {known} in one cell and {cell.order} in another; "
                "cells of different experiments cannot share a directory."
            )
