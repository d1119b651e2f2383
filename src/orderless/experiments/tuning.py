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
    results = []
    for value in values:
        settings = grid.settings.with_text([f"{key}={value}"])
        one = dataclasses.replace(grid, settings=settings)
        store = Store(directory / f"{key}={value}")
        run_grid(one, store, root=root, device=device)
        finals = [
            np.mean(record["scores"]["accuracy"][-1])
            for path in sorted((store.directory / "cells").glob("*.json"))
            if (record := store.finished(path.stem)) is not None
        ]
        results.append((value, float(np.mean(finals))))
    return results
