"""The distance between two orders in swaps of neighbours (the N of Theorem 1).

The smallest number of swaps of adjacent elements that turns one order into another is the number of
pairs that the two orders rank differently: the Kendall tau distance, from 0 to T (T - 1) / 2.
"""

from collections.abc import Sequence

import numpy as np


def adjacent_swaps(order: Sequence[int]) -> int:
    """The smallest number of swaps of neighbours between an order and the ascending one."""
    return len(swap_path(order))


def order_at_distance(length: int, swaps: int, seed: int = 0) -> list[int]:
    """A random order of 0 ... T-1 at exactly `swaps` adjacent swaps from the ascending one.

    Starting from the ascending order, two random neighbours that still ascend are swapped, `swaps`
    times. Each swap puts one more pair out of order, so the distance grows by one. Every order at
    that distance is possible, but not all are equally likely.
    """
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


def swap_path(order: Sequence[int]) -> list[int]:
    """Places p_1, p_2, ... from 0: swapping the elements p and p + 1 in turn sorts an order.

    No path is shorter: each swap corrects one pair that is out of order (insertion sort).
    """
    elements = list(order)
    path = []
    for end in range(1, len(elements)):
        place = end
        while place > 0 and elements[place - 1] > elements[place]:
            place -= 1
            elements[place], elements[place + 1] = elements[place + 1], elements[place]
            path.append(place)
    return path
