"""How far apart two orders are, counted in swaps of neighbours (the N of Theorem 1).

The fewest swaps of adjacent elements that turn one order into another is the number of pairs that
the two orders rank differently: the Kendall tau distance, between 0 and T (T - 1) / 2.
"""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np


def adjacent_swaps(order_a: Sequence[Any], order_b: Sequence[Any] | None = None) -> int:
    """Fewest swaps of neighbours that turn `order_a` into `order_b`, by O(T log T) comparisons.

    Without `order_b`: into ascending order. Elements are any hashable values, each once.
    """
    sorted_so_far: list[int] = []
    swaps = 0
    for rank in _ranks(order_a, sorted(order_a) if order_b is None else order_b):
        place = bisect_left(sorted_so_far, rank)
        swaps += len(sorted_so_far) - place  # these stand before it and belong after it
        sorted_so_far.insert(place, rank)
    return swaps


def order_at_distance(length: int, swaps: int, seed: int = 0) -> list[int]:
    """A random order of 0 ... T-1 at exactly `swaps` adjacent swaps from the ascending one.

    From the ascending order, `swaps` times: two neighbours, drawn at random among those that still
    ascend, change places. Each such swap puts exactly one more pair out of order, so the distance
    grows by one. Every order at that distance can come out, not all with the same probability.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    most = length * (length - 1) // 2
    if not 0 <= swaps <= most:
        raise ValueError(f"swaps must lie between 0 and {most} for length {length}, got {swaps}")
    generator = np.random.default_rng(seed)
    order = list(range(length))
    ascending = list(range(length - 1))  # places t, sorted, with order[t] < order[t + 1]
    for _ in range(swaps):
        place = ascending[generator.integers(len(ascending))]
        order[place], order[place + 1] = order[place + 1], order[place]
        for near in range(max(place - 1, 0), min(place + 2, length - 1)):
            _keep(ascending, near, order[near] < order[near + 1])
    return order


def swap_path(order_a: Sequence[Any], order_b: Sequence[Any] | None = None) -> list[int]:
    """Places p_1, p_2, ...: swapping elements p and p + 1 (from 0) in turn leads from a to b.

    Its length is `adjacent_swaps(order_a, order_b)`: each swap mends one pair (insertion sort).
    """
    ranks = _ranks(order_a, sorted(order_a) if order_b is None else order_b)
    path = []
    for end in range(1, len(ranks)):
        place = end
        while place > 0 and ranks[place - 1] > ranks[place]:
            place -= 1
            ranks[place], ranks[place + 1] = ranks[place + 1], ranks[place]
            path.append(place)
    return path


def _ranks(order_a: Sequence[Hashable], order_b: Sequence[Hashable]) -> list[int]:
    """Where each element of `order_a` stands in `order_b`."""
    place = {element: rank for rank, element in enumerate(order_b)}
    if len(place) != len(order_b):
        raise ValueError("an order holds every element once; this one repeats some")
    if len(order_a) != len(order_b) or set(order_a) != place.keys():
        raise ValueError(
            f"the two orders must hold the same elements, got {len(order_a)} and {len(order_b)} "
            f"of which {len(place.keys() & set(order_a))} are common"
        )
    return [place[element] for element in order_a]


def _keep(sorted_places: list[int], place: int, wanted: bool) -> None:
    """Put `place` into the sorted list, or take it out."""
    at = bisect_left(sorted_places, place)
    there = at < len(sorted_places) and sorted_places[at] == place
    if wanted and not there:
        sorted_places.insert(at, place)
    elif there and not wanted:
        del sorted_places[at]
