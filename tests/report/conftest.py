"""Run directories made of synthetic cells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.report.synthetic_cells import LEVELS, make_cell, write_run


@pytest.fixture
def write_cells(tmp_path: Path) -> Callable[..., Path]:
    """Writes cells into a run directory and returns it."""

    def write(cells: list[dict[str, Any]], directory: Path | None = None) -> Path:
        return write_run(directory or tmp_path / "run", cells)

    return write


@pytest.fixture
def full_run(write_cells: Callable[..., Path]) -> Path:
    """All methods, 10 orders x 3 seeds."""
    return write_cells(
        [
            make_cell(name, order, seed)
            for name in LEVELS
            for order in range(10)
            for seed in range(3)
        ]
    )
