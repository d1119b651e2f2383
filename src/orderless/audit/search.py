"""Search the worst and the best order of tasks with few runs.

Random orders miss the tails. The standardised scores of the orders tried are modelled by a Gaussian
process over orders o of T tasks, with noise of variance 0.05 and the kernel

    k(o, o') = (exp(-d(o, o') / 4) + phi(o).phi(o')) / 2

d is Kendall's distance, the number of pairs of tasks that o and o' put in a different order. The
features phi are what usually matters: which task of each pair comes first (+-1 / sqrt(pairs)), and
which tasks are first (1/2), last but one and last (1), all divided by sqrt(3.25), so that
phi.phi = 1. The next order to try has the lowest mean - 2 sd, and every third time the highest
mean + 2 sd. Up to seven tasks every order is a candidate; with more tasks, hill climbing starts at
the most extreme order so far and moves one task at a time.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .orders import Order, draw_orders

Array = NDArray[np.float64]
FIRST = 10  # orders drawn at random before the first prediction
NOISE = 0.05
ALL = 7  # largest number of tasks for which every order is a candidate


def search(
    score: Callable[[Order], float], known: Mapping[Order, float], budget: int
) -> dict[Order, float]:
    """Scores of all orders tried: those `known` and `budget` more, or as many as exist."""
    found = dict(known)
    tasks = len(next(iter(found)))
    every = math.factorial(tasks)
    for order in draw_orders(tasks, min(FIRST + len(found), every), seed=1):
        if len(found) < min(FIRST, len(known) + budget) and order not in found:
            found[order] = score(order)
    while len(found) < min(len(known) + budget, every):
        sign = 1.0 if len(found) % 3 == 2 else -1.0
        order = _next(found, sign)
        found[order] = score(order)
    return found


def _next(found: Mapping[Order, float], sign: float) -> Order:
    """The untried order with the largest acquisition in the direction of `sign`."""
    acquisition = _acquisition(list(found), sign * np.array(list(found.values())))
    tasks = len(next(iter(found)))
    if tasks <= ALL:
        open_orders = [o for o in itertools.permutations(range(tasks)) if o not in found]
        return open_orders[int(acquisition(open_orders).argmax())]
    ranked = sorted(found, key=lambda order: -sign * found[order])
    best = next(order for order in ranked if any(near not in found for near in _moves(order)))
    value = -np.inf
    while near := [order for order in _moves(best) if order not in found]:
        values = acquisition(near)
        if values.max() <= value:
            break
        best, value = near[int(values.argmax())], values.max()
    return best


def _moves(order: Order) -> Iterator[Order]:
    """All orders that differ by moving one task."""
    for place, task in enumerate(order):
        rest = order[:place] + order[place + 1 :]
        for other in range(len(order)):
            if other != place:
                yield rest[:other] + (task,) + rest[other:]


def _acquisition(tried: Sequence[Order], scores: Array) -> Callable[[Sequence[Order]], Array]:
    """A function that gives mean + 2 sd of the Gaussian process, given the orders tried."""
    y = (scores - scores.mean()) / (scores.std() or 1.0)
    factor = np.linalg.cholesky(kernel(tried, tried) + NOISE * np.eye(len(tried)))
    whitened = np.linalg.solve(factor, y)

    def acquisition(orders: Sequence[Order]) -> Array:
        reach = np.linalg.solve(factor, kernel(tried, orders))
        variance = 1.0 - np.square(reach).sum(axis=0)
        return whitened @ reach + 2.0 * np.sqrt(variance.clip(min=0.0))

    return acquisition


def kernel(some: Sequence[Order], others: Sequence[Order]) -> Array:
    """The kernel matrix `[K, L]`; 1 for equal orders."""
    (signs, ends), (other_signs, other_ends) = _features(some), _features(others)
    agreement = signs @ other_signs.T / signs.shape[1]  # 1 - 2 d / pairs
    kendall = (1.0 - agreement) / 2.0 * signs.shape[1]
    return (np.exp(-kendall / 4.0) + (agreement + ends @ other_ends.T) / 3.25) / 2.0


def _features(orders: Sequence[Order]) -> tuple[Array, Array]:
    """Which task of each pair comes first `[K, pairs]`, and which are at the ends `[K, 3 T]`."""
    sequence = np.array(orders)
    places, tasks = sequence.argsort(axis=1), sequence.shape[1]
    first, second = np.triu_indices(tasks, 1)
    signs = np.where(places[:, first] < places[:, second], 1.0, -1.0)
    one_hot = np.eye(tasks)
    ends = [0.5 * one_hot[sequence[:, 0]], one_hot[sequence[:, -2]], one_hot[sequence[:, -1]]]
    return signs, np.concatenate(ends, axis=1)
