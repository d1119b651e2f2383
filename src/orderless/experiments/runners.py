"""Which runner a cell takes."""

from __future__ import annotations

from typing import Any

from .cell import SupervisedRunner
from .policy_cell import CloningRunner, LifelongRunner
from .readings import TrainingRunner
from .runner import Cell, CellRunner
from .store import Store

RUNNERS: dict[str, type[Any]] = {
    "supervised": SupervisedRunner,
    "cloning": CloningRunner,
    "lifelong": LifelongRunner,
    "regime": TrainingRunner,
}


def runner_of(cell: Cell, scenario: Any, store: Store, **options: Any) -> CellRunner:
    """The runner of a cell, by its kind."""
    return RUNNERS[cell.kind](cell, scenario, store, **options)
