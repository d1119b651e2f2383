"""Choose a setting by its average on held-out data, or on a seed that is not reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from orderless.errors import UserError

from ..text import file_name
from .frame import load_run
from .grid import Grid, run_grids
from .store import Store

EXTENSIONS = 5  # values added at most while the best is the largest or the smallest


def sweep(
    grid: Grid,
    key: str,
    values: Sequence[str],
    directory: Path,
    *,
    combine: str = "particles",
    **options: Any,
) -> list[tuple[str, float]]:
    """(value, validation average) for each value; finished cells are not computed again.

    Args:
        combine: how particles are scored, one of `Suite.scores`.
        options: of `run_grids`; the cells of all values share its processes.
    """
    for name, held_out in grid.settings.held_out.items():
        if not getattr(grid.settings, name):
            raise UserError(f"a sweep must not see what is reported: set {name}={held_out}")
    if combine not in grid.suite.scores:
        known = ", ".join(grid.suite.scores)
        raise UserError(f"combine must be one of {known}, got {combine!r}")
    if not values:
        raise UserError(f"name at least one value of {key} to try")

    def at(value: str) -> tuple[Grid, Store]:
        settings = grid.settings.with_text([f"{key}={value}"])
        if not grid.reads(key):
            raise UserError(f"{key} has no effect on {' or '.join(grid.methods)}: nothing reads it")
        return replace(grid, settings=settings), Store(directory / file_name(f"{key}={value}"))

    def scores(some: Sequence[str]) -> list[tuple[str, float]]:
        pairs = [at(value) for value in some]  # raises for a bad value before the first run
        run_grids(pairs, **options)
        found = []
        for value, (one, store) in zip(some, pairs, strict=True):
            asked = {cell.name for cell in one.cells()}
            records = [cell for cell in load_run(store.directory).cells if cell.name in asked]
            finals: Any = [record.final(combine) for record in records]
            found.append((value, float(np.mean(finals))))
        return found

    results = scores(values)
    for _ in range(EXTENSIONS):
        following = beyond(results)
        if following is None:
            break
        try:
            at(following)
        except UserError:  # 0.5 units, say
            break
        results += scores([following])
    return results


def beyond(results: list[tuple[str, float]]) -> str | None:
    """The next value by the grid's ratio, at most tenfold, if its best is at an end; or None."""
    try:
        points = sorted({float(value): score for value, score in results}.items())
    except ValueError:  # not numbers
        return None
    if len(points) < 2:
        return None
    for (end, at_end), (inner, _) in (points[:2], points[:-3:-1]):
        highest = at_end > max(score for value, score in points if value != end)
        if highest and end > 0 and inner > 0:
            return f"{end * min(max(end / inner, 0.1), 10.0):.6g}"
    return None
