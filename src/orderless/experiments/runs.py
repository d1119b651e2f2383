"""Which course a cell takes."""

from __future__ import annotations

from typing import Any

from .benchmarks import find_benchmark
from .cell import CellRun
from .course import Cell, Course
from .policy_cell import CloningRun, LifelongRun
from .store import Store

COURSES: dict[str, type[Any]] = {
    "supervised": CellRun,
    "cloning": CloningRun,
    "lifelong": LifelongRun,
}


def course_of(cell: Cell, scenario: Any, store: Store, **options: Any) -> Course:
    """The run of a cell, by the kind of its benchmark."""
    return COURSES[find_benchmark(cell.benchmark).kind](cell, scenario, store, **options)
