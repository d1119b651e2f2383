"""Report pages made of synthetic cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

# The cells are those of the report's own tests.
from lab.tests.report.synthetic_cells import TASKS, make_cell, write_run

import orderless as ol
from orderless_lab.report import load_run, summarize
from orderless_lab.report.density import load_frames
from orderless_lab.report.page import page_data, render

__all__ = ["METHODS", "TASKS", "make_cell", "write_page"]

METHODS = ("wpf", "averaging", "gd", "ewc", "ewc+wpf", "rb")


def write_page(directory: Path, cells: list[dict[str, Any]], snapshots: str | None = None) -> Path:
    """A report page from synthetic cells, and from snapshots under the given name."""
    write_run(directory, cells)
    if snapshots is not None:
        generator = np.random.default_rng(0)
        arrays = {
            "positions": generator.normal(size=(TASKS + 1, 20, 8)).astype(np.float32),
            "log_weights": -np.arange(TASKS + 1)[:, None] * generator.exponential(size=(1, 20)),
            "step": np.arange(TASKS + 1) * 100,
        }
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        ol.save(directory / "snapshots" / f"{snapshots}.st", tensors)
    run = load_run(directory)
    page = page_data(run, summarize(run), *load_frames(directory))
    (directory / "report.html").write_text(render(page), encoding="utf-8")
    return directory / "report.html"
