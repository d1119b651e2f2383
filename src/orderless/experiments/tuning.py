"""Choosing one setting by its average on held-out training data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch

from .engine import Report
from .grid import Grid, run_grid
from .store import Store


def sweep(
    grid: Grid,
    key: str,
    values: list[str],
    directory: Path,
    *,
    root: str | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[str], AbstractContextManager[Report]] = lambda text: nullcontext(Report()),
) -> list[tuple[str, float]]:
    """(value, validation average) for each value; finished ones are read, not run again.

    Args:
        progress: from what is tried now to what `run_grid` reports to.
    """
    if not getattr(grid.settings, "validation", 0) > 0:
        raise ValueError("a sweep needs validation data: set validation, e.g. to 0.1")
    if not values:
        raise ValueError(f"name at least one value of {key} to try")
    # all of them before the first is run: a bad one should not come up hours later
    grids = [
        dataclasses.replace(grid, settings=grid.settings.with_text([f"{key}={value}"]))
        for value in values
    ]
    results = []
    for number, (value, one) in enumerate(zip(values, grids, strict=True), start=1):
        store = Store(directory / f"{key}={value}")
        with progress(f"{key}={value} ({number} of {len(values)})") as report:
            run_grid(one, store, root=root, device=device, report=report)
        finals = [
            np.mean(record["scores"]["accuracy"][-1])
            for record in store.finished().values()
            if one.asks_for(record)
        ]
        results.append((value, float(np.mean(finals))))
    return results
