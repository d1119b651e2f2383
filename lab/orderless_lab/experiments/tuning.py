"""Choose a setting by its average on held-out data, or on a seed that is not reported."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch

from ..text import file_name
from .benchmarks import find_benchmark
from .engine import Report
from .grid import RUNNERS, Grid, run_grid
from .record import load_run
from .store import Store

EXTENSIONS = 5  # values added at most while the best is the largest or the smallest


def sweep(
    grid: Grid,
    key: str,
    values: list[str],
    directory: Path,
    *,
    combine: str = "accuracy",
    root: str | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[str], AbstractContextManager[Report]] = lambda text: nullcontext(Report()),
) -> list[tuple[str, float]]:
    """(value, validation average) for each value; finished cells are not computed again.

    Args:
        combine: how particles are scored, "accuracy", "logits" or "probs".
        progress: maps the title of a run to a context manager with its report.
    """
    name = grid.settings.held_out.partition("=")[0]
    if not getattr(grid.settings, name):
        raise ValueError(f"a sweep must not see what is reported: set {grid.settings.held_out}")
    combines = RUNNERS[find_benchmark(grid.benchmark).kind].combines
    if combine not in combines:
        raise ValueError(f"combine must be one of {', '.join(combines)}, got {combine!r}")
    if not values:
        raise ValueError(f"name at least one value of {key} to try")

    def at(value: str) -> Grid:
        return dataclasses.replace(grid, settings=grid.settings.with_text([f"{key}={value}"]))

    def score(value: str, place: str) -> float:
        one, store = at(value), Store(directory / file_name(f"{key}={value}"))
        with progress(f"{key}={value} ({place})") as report:
            run_grid(one, store, root=root, device=device, report=report)
        cells = filter(one.asks_for, load_run(store.directory).cells)
        return float(np.mean([cell.final(combine) for cell in cells]))

    for value in values:
        at(value)  # raises for a bad value before the first run
    results = [
        (value, score(value, f"{number} of {len(values)}"))
        for number, value in enumerate(values, start=1)
    ]
    for _ in range(EXTENSIONS):
        following = beyond(results)
        if following is None:
            break
        try:
            at(following)
        except ValueError:  # 0.5 units, say
            break
        results.append((following, score(following, "beyond the grid's end")))
    return results


def beyond(results: list[tuple[str, float]]) -> str | None:
    """The next value by the grid's ratio, at most tenfold, if its best is at an end; or None."""
    try:
        points = sorted({float(value): score for value, score in results}.items())
    except ValueError:  # not numbers
        return None
    for (end, at_end), (inner, _) in (points[:2], points[:-3:-1]) if points[1:] else ():
        if end > 0 and inner > 0 and at_end > max(score for value, score in points if value != end):
            return f"{end * min(max(end / inner, 0.1), 10.0):.6g}"
    return None
