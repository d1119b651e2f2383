"""Run directories made of synthetic cells."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.tests.toys import LEVELS, TASKS, make_cells, write_run

from orderless_lab.report import Summary, summarize

Law = Callable[[str, int, int], Any]


@pytest.fixture
def write_cells(tmp_path: Path) -> Callable[..., Path]:
    """Writes cells into a run directory and returns it."""

    def write(cells: list[dict[str, Any]], name: str = "run") -> Path:
        return write_run(tmp_path / name, cells)

    return write


@pytest.fixture
def summary_of(write_cells: Callable[..., Path]) -> Callable[..., Summary]:
    """The summary of cells."""

    numbers = itertools.count()

    def summary(cells: list[dict[str, Any]]) -> Summary:
        (found,) = summarize(write_cells(cells, f"run-{next(numbers)}"))
        return found

    return summary


@pytest.fixture
def ruled_by(summary_of: Callable[..., Summary]) -> Callable[..., Summary]:
    """The summary of a run whose final scores are `law(method, order, seed)`, one per task."""

    def summary(law: Law, methods: list[str], orders: int = 3, seeds: int = 1) -> Summary:
        cells = make_cells(*methods, orders=orders, seeds=seeds)
        for cell in cells:
            final = law(cell["method"], cell["order_index"], cell["seed"])
            cell["scores"]["particles"][-1] = np.broadcast_to(final, TASKS).tolist()
        return summary_of(cells)

    return summary


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All methods, 6 orders x 3 seeds; written once, to be read only."""
    cells = make_cells(*LEVELS, orders=6, seeds=3)
    return write_run(tmp_path_factory.mktemp("full") / "run", cells)


@pytest.fixture(scope="session")
def full_summary(full_run: Path) -> Summary:
    """Their numbers, to be looked at."""
    (summary,) = summarize(full_run)
    return summary
