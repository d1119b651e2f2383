"""The distance between two orders in swaps of neighbours (the N of Theorem 1).

The smallest number of swaps of adjacent elements that turns one order into another is the number of
pairs that the two orders rank differently: the Kendall tau distance, from 0 to T (T - 1) / 2.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np


def adjacent_swaps(order_a: Sequence[Any], order_b: Sequence[Any] | None = None) -> int:
    """The smallest number of swaps of neighbours from one order to another (default: ascending).

    Elements are distinct hashable values. Takes O(T log T) comparisons.
    """
    sorted_so_far: list[int] = []
    swaps = 0
    for rank in _ranks(order_a, order_b):
        place = bisect_left(sorted_so_far, rank)
        swaps += len(sorted_so_far) - place  # these come before it and belong after it
        sorted_so_far.insert(place, rank)
    return swaps


def order_at_distance(length: int, swaps: int, seed: int = 0) -> list[int]:
    """A random order of 0 ... T-1 at exactly `swaps` adjacent swaps from the ascending one.

    Starting from the ascending order, two random neighbours that still ascend are swapped, `swaps`
    times. Each swap puts one more pair out of order, so the distance grows by one. Every order at
    that distance is possible, but not all are equally likely.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    most = length * (length - 1) // 2
    if not 0 <= swaps <= most:
        raise ValueError(f"swaps must lie between 0 and {most} for length {length}, got {swaps}")
    generator = np.random.default_rng(seed)
    order = np.arange(length)
    for _ in range(swaps):
        ascending = np.flatnonzero(order[:-1] < order[1:])
        place = ascending[generator.integers(len(ascending))]
        order[[place, place + 1]] = order[[place + 1, place]]
    return order.tolist()


def swap_path(order_a: Sequence[Any], order_b: Sequence[Any] | None = None) -> list[int]:
    """Places p_1, p_2, ... from 0: swapping the elements p and p + 1 in turn leads from a to b.

    Its length is `adjacent_swaps(order_a, order_b)`: each swap corrects one pair (insertion sort).
    """
    ranks = _ranks(order_a, order_b)
    path = []
    for end in range(1, len(ranks)):
        place = end
        while place > 0 and ranks[place - 1] > ranks[place]:
            place -= 1
            ranks[place], ranks[place + 1] = ranks[place + 1], ranks[place]
            path.append(place)
    return path


def _ranks(order_a: Sequence[Any], order_b: Sequence[Any] | None) -> list[int]:
    """The places in `order_b`, or in ascending order, of the elements of `order_a`."""
    order_b = sorted(order_a) if order_b is None else order_b
    place = {element: rank for rank, element in enumerate(order_b)}
    if len(place) != len(order_b):
        raise ValueError("an order holds every element once, but elements are repeated")
    if len(order_a) != len(order_b) or set(order_a) != place.keys():
        raise ValueError(
            f"the two orders must hold the same elements, got {len(order_a)} and {len(order_b)} "
            f"of which {len(place.keys() & set(order_a))} are common"
        )
    return [place[element] for element in order_a]
