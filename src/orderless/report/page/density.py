"""The particles' density over training: t-SNE here, the drawing in the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cells import Cell, ReportError, group_key
from ..figures import embed_snapshots
from ..paper import method_label
from ..snapshots import load_snapshots

POINTS = 4000  # t-SNE takes about ten seconds for so many
FEWEST_FRAMES = 6


def densities(
    directory: Path, cells: list[Cell], seed: int = 0
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every ``directory/snapshots/*.st`` as frames to draw, and a sentence per file that failed.

    A missing scikit-learn or a broken file costs the animation, never the page.
    """
    drawn, problems = [], []
    by_name = {_name(cell): cell for cell in cells}
    for path in sorted((directory / "snapshots").glob("*.st")):
        try:
            drawn.append(_frames(path, by_name.get(path.stem), seed))
        except ReportError as error:
            problems.append(f"The particles of {path.name} are not shown: {error}")
    return drawn, problems


def _name(cell: Cell) -> str:
    """The name under which the store keeps a cell and its snapshots."""
    parts = (*group_key(cell), cell["method"])
    return "-".join(parts) + f"-order{cell['order_index']}-seed{cell['seed']}"


def _frames(path: Path, cell: Cell | None, seed: int) -> dict[str, Any]:
    positions, log_weights, steps = load_snapshots(path)
    count = min(len(steps), max(FEWEST_FRAMES, POINTS // positions.shape[1]))
    chosen = np.unique(np.linspace(0, len(steps) - 1, count).round().astype(int))
    places = _unit(embed_snapshots(positions[chosen].astype(np.float64), seed))
    moments = _moments(cell, len(steps))
    return {
        "label": _label(path, cell),
        "group": None if cell is None else list(group_key(cell)),
        "steps": [int(step) for step in steps[chosen]],
        "moments": None if moments is None else [moments[frame] for frame in chosen],
        "places": np.round(places, 3).tolist(),
        "weights": np.round(_weights(log_weights[chosen]), 4).tolist(),
    }


def _label(path: Path, cell: Cell | None) -> str:
    if cell is None:
        return path.stem
    return f"{method_label(cell['method'])}, order {cell['order_index']}, seed {cell['seed']}"


def _moments(cell: Cell | None, frames: int) -> list[int | None] | None:
    """The task learned last at each frame (null before the first), where that is known."""
    if cell is None or frames != len(cell["order"]) + 1:
        return None
    return [None, *cell["order"]]


def _unit(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Into the unit square, both axes by the same factor: distances keep their meaning."""
    low, high = places.min(axis=(0, 1)), places.max(axis=(0, 1))
    size = float((high - low).max()) or 1.0
    return 0.5 + (places - (low + high) / 2) / size


def _weights(log_weights: NDArray[Any]) -> NDArray[np.float64]:
    """Normalised weights of each frame; a frame without any finite one is an error."""
    largest = log_weights.max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise ReportError("some log-weights are not usable.")
    weights = np.exp((log_weights - largest).astype(np.float64))
    return weights / weights.sum(axis=1, keepdims=True)
