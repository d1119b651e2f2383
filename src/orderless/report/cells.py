"""Reading finished cells from a run directory, and the grids S[seed, order, task] they form."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..methods import remember
from .form import CELL, misfit

Cell = dict[str, Any]
Place = tuple[int, int]  # (seed, order index)

NEEDED = ("benchmark", "method", "order_index", "order", "seed", "scores")


class ReportError(Exception):
    """A report cannot be made; the message is one sentence for the user."""


def read_json(path: Path) -> Cell:
    """The default reader of a cell file."""
    return json.loads(path.read_text(encoding="utf-8"))


def load_cells(directory: str | Path, read: Callable[[Path], Cell] | None = None) -> list[Cell]:
    """All finished cells under ``directory/cells``, checked, in an order that no file name
    decides.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ReportError(f"{directory} is not a directory.")
    cells: list[Cell] = []
    for path in sorted((directory / "cells").glob("*.json")):
        try:
            cell = (read or read_json)(path)
        except (OSError, ValueError) as error:
            raise ReportError(
                f"{path} cannot be read ({error}); remove it and run the same command again."
            ) from error
        cells.append(_checked(cell, path))
        if isinstance(cell.get("described"), dict):
            remember(cell["described"])
    if not cells:
        raise ReportError(
            f"{directory} holds no finished cells; run `orderless run` into it first."
        )
    cells.sort(key=lambda c: (*group_key(c), c["method"], c["order_index"], c["seed"]))
    for earlier, later in itertools.pairwise(cells):
        if _identity(earlier) == _identity(later):
            raise ReportError(
                f"Two cells in {directory} hold {later['method']}, order {later['order_index']}, "
                f"seed {later['seed']} of {' '.join(group_key(later))}; keep one of them."
            )
    return cells


def group_key(cell: Cell) -> tuple[str, str, str]:
    """Which table a cell belongs to: (benchmark, scenario, preset)."""
    return (
        cell["benchmark"],
        str(cell.get("scenario") or "domain"),
        str(cell.get("preset") or "none"),
    )


def _identity(cell: Cell) -> tuple[Any, ...]:
    return (*group_key(cell), cell["method"], cell["order_index"], cell["seed"])


def _checked(cell: Any, path: Path) -> Cell:
    if isinstance(cell, dict) and "learner" in cell and "method" not in cell:
        raise ReportError(
            f"{path} is a run of an audit: `orderless audit` with the same --out writes its report."
        )
    if not isinstance(cell, dict) or any(key not in cell for key in NEEDED):
        missing = [key for key in NEEDED if key not in cell] if isinstance(cell, dict) else NEEDED
        raise ReportError(f"{path} is not a cell of an experiment: it lacks {', '.join(missing)}.")
    odd = misfit(cell, CELL) or next((f".{key}" for key in NEEDED if cell[key] is None), None)
    if odd is None and sorted(cell["order"]) != list(range(len(cell["order"]))):
        odd = ".order"
    if odd is not None:
        raise ReportError(f"{path} is not a cell of an experiment: {odd[1:]} makes no sense.")
    tasks = len(cell["order"])
    matrices = {name: score_matrix(cell, name) for name in ("accuracy", *cell["scores"])}
    matrix, shape = matrices["accuracy"], (tasks + 1, tasks)
    odd = next((n for n, m in matrices.items() if m is not None and m.shape != shape), None)
    if odd not in (None, "accuracy"):
        raise ReportError(f"{path} must hold scores.{odd} of shape {list(shape)}.")
    if matrix is None or matrix.shape != shape or not np.isfinite(matrix[-1]).all():
        raise ReportError(
            f"{path} must hold scores.accuracy of shape [{tasks + 1}, {tasks}] "
            "with a finite last row."
        )
    return cell


def score_matrix(cell: Cell, combine: str = "accuracy") -> NDArray[np.float64] | None:
    """R[i, j] of one cell, ``[T + 1, T]`` with NaN for null, or None where the cell has none."""
    rows = cell["scores"].get(combine)
    if not rows or len({len(row) for row in rows}) != 1:
        return None
    return np.array(rows, dtype=np.float64)  # null becomes NaN


def by_place(cells: Iterable[Cell], method: str) -> dict[Place, Cell]:
    """One method's cells by (seed, order index)."""
    return {(c["seed"], c["order_index"]): c for c in cells if c["method"] == method}


def complete_block(places: Iterable[Place]) -> tuple[list[int], list[int]]:
    """The largest complete seeds x orders block among finished (seed, order index) places.

    Of two equally large blocks the one with more orders, then the one with lower seeds. Exact up
    to 12 seeds or orders on the smaller side; beyond that the sides are added one by one, fullest
    first.
    """
    orders_of: dict[int, set[int]] = {}
    seeds_of: dict[int, set[int]] = {}
    for seed, order in places:
        orders_of.setdefault(seed, set()).add(order)
        seeds_of.setdefault(order, set()).add(seed)
    if len(orders_of) <= len(seeds_of):
        blocks = [(chosen, common) for chosen, common in _candidates(orders_of)]
    else:
        blocks = [(common, chosen) for chosen, common in _candidates(seeds_of)]
    best = max(
        blocks,
        key=lambda b: (len(b[0]) * len(b[1]), len(b[1]), [-i for i in b[0]], [-i for i in b[1]]),
        default=([], []),
    )
    return best


def _candidates(partners: dict[int, set[int]]) -> list[tuple[list[int], list[int]]]:
    """Subsets of one side, each with all partners its members have in common."""
    fullest_first = sorted(partners, key=lambda member: (-len(partners[member]), member))
    sizes = range(1, len(fullest_first) + 1)
    subsets: Iterable[tuple[int, ...]]
    if len(fullest_first) <= 12:
        subsets = itertools.chain.from_iterable(
            itertools.combinations(fullest_first, size) for size in sizes
        )
    else:
        subsets = (tuple(fullest_first[:size]) for size in sizes)
    return [
        (sorted(subset), sorted(set.intersection(*(partners[member] for member in subset))))
        for subset in subsets
    ]


def score_grid(
    cells: dict[Place, Cell], seeds: list[int], orders: list[int], combine: str = "accuracy"
) -> NDArray[np.float64] | None:
    """S[seed, order, task] of the final row, or None where a cell lacks this way of combining."""
    grid = []
    for seed in seeds:
        rows = [score_matrix(cells[seed, order], combine) for order in orders]
        if any(row is None or not np.isfinite(row[-1]).all() for row in rows):
            return None
        grid.append([row[-1] for row in rows if row is not None])
    return np.array(grid)


def predicted_labels(cell: Cell) -> list[NDArray[np.uint8]] | None:
    """Predicted labels on each task's test set, T arrays, or None where the cell has none."""
    encoded = cell.get("predictions")
    if not encoded:
        return None
    try:
        return [np.frombuffer(base64.b64decode(text), dtype=np.uint8) for text in encoded]
    except ValueError as error:
        raise ReportError(f"predictions cannot be decoded: {error}.") from None
