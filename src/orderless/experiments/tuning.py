"""Choosing one setting by its average on held-out training data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

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
) -> list[tuple[str, float]]:
    """(value, validation average) for each value; finished ones are read, not run again."""
    if not grid.settings.validation > 0:
        raise ValueError("a sweep needs validation data: set validation, e.g. to 0.1")
    if not values:
        raise ValueError(f"name at least one value of {key} to try")
    # all of them before the first is run: a bad one should not come up hours later
    grids = [
        dataclasses.replace(grid, settings=grid.settings.with_text([f"{key}={value}"]))
        for value in values
    ]
    results = []
    for value, one in zip(values, grids, strict=True):
        store = Store(directory / f"{key}={value}")
        run_grid(one, store, root=root, device=device)
        finals = [
            np.mean(record["scores"]["accuracy"][-1])
            for record in store.finished().values()
            if one.asks_for(record)
        ]
        results.append((value, float(np.mean(finals))))
    return results
