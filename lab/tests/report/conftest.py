"""Run directories made of synthetic cells."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.tests.report.synthetic_cells import LEVELS, make_cell, write_run

from orderless_lab.report import Summary, load_run, summarize
from orderless_lab.report.density import load_frames
from orderless_lab.report.page import page_data
from orderless_lab.report.page.data import Page
from orderless_lab.report.tables import format_tables


@pytest.fixture
def write_cells(tmp_path: Path) -> Callable[..., Path]:
    """Writes cells into a run directory and returns it."""

    def write(cells: list[dict[str, Any]], directory: Path | None = None) -> Path:
        return write_run(directory or tmp_path / "run", cells)

    return write


@pytest.fixture(scope="session")
def full_cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All methods, 10 orders x 3 seeds; written once."""
    cells = [
        make_cell(name, order, seed) for name in LEVELS for order in range(10) for seed in range(3)
    ]
    return write_run(tmp_path_factory.mktemp("full") / "run", cells)


@pytest.fixture(scope="session")
def full_summary(full_cells: Path) -> Summary:
    """Their numbers, to be looked at."""
    (summary,) = summarize(full_cells)
    return summary


@pytest.fixture(scope="session")
def full_page(full_cells: Path) -> Page:
    """What their page shows, to be looked at."""
    run = load_run(full_cells)
    return page_data(run, summarize(run), *load_frames(run.directory))


@pytest.fixture(scope="session")
def full_report(full_summary: Summary) -> str:
    """What `report.json` says of them."""
    return format_tables([full_summary], "json")


@pytest.fixture
def full_run(full_cells: Path, tmp_path: Path) -> Path:
    """The same cells in a directory of the test's own."""
    return Path(shutil.copytree(full_cells, tmp_path / "run"))
