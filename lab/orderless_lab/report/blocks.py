"""The largest complete block of seeds x orders, and its scores S[seed, order, task]."""

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..experiments.record import CellRecord

Place = tuple[int, int]  # (seed, order index)
Cells = dict[Place, CellRecord]  # of one method


def by_place(cells: Iterable[CellRecord], method: str) -> Cells:
    """One method's cells by (seed, order index)."""
    return {(cell.seed, cell.order_index): cell for cell in cells if cell.method == method}


def complete_block(places: Iterable[Place]) -> tuple[list[int], list[int]]:
    """The largest complete seeds x orders block among finished (seed, order index) places.

    Ties go to more orders, then to lower seeds. The search is exhaustive if there are at most 12
    seeds or at most 12 orders, and greedy otherwise: seeds or orders are added one by one, those
    with most finished cells first.
    """
    orders_of: dict[int, set[int]] = {}
    seeds_of: dict[int, set[int]] = {}
    for seed, order in places:
        orders_of.setdefault(seed, set()).add(order)
        seeds_of.setdefault(order, set()).add(seed)
    by_seed = len(orders_of) <= len(seeds_of)
    partners = orders_of if by_seed else seeds_of
    fullest = sorted(partners, key=lambda member: (-len(partners[member]), member))
    sizes = range(1, len(fullest) + 1)
    subsets: Iterable[Iterable[int]] = (fullest[:size] for size in sizes)
    if len(fullest) <= 12:
        subsets = itertools.chain(*(itertools.combinations(fullest, size) for size in sizes))
    sides = [(sorted(s), sorted(set.intersection(*map(partners.__getitem__, s)))) for s in subsets]
    return max(
        sides if by_seed else [(common, chosen) for chosen, common in sides],
        key=lambda b: (len(b[0]) * len(b[1]), len(b[1]), [-i for i in b[0]], [-i for i in b[1]]),
        default=([], []),
    )


def by_order_place(cell: CellRecord) -> dict[str, list[float | None]]:
    """Plasticity by place in the order; "return", with curves, is the area under each curve."""
    final = cell.final()
    if cell.curves is None or final is None:
        return cell.plasticity
    return {**cell.plasticity, "return": final[cell.order].tolist()}


def score_grid(
    cells: Cells, seeds: list[int], orders: list[int], combine: str = "accuracy"
) -> NDArray[np.float64] | None:
    """S[seed, order, task] after the last task; None if a cell lacks this combination."""
    rows = [cells[seed, order].final(combine) for seed in seeds for order in orders]
    if any(row is None for row in rows):
        return None
    return np.array(rows).reshape(len(seeds), len(orders), -1)
