"""The maximum of a smooth function of one number, in few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any


def maximize(
    function: Callable[[float], float], start: float, low: float, high: float, **options: Any
) -> float:
    """Where a smooth function of one number is largest: see `climb`."""
    search = climb(start, low, high, **options)
    point = next(search)
    while True:
        try:
            point = search.send(function(point))
        except StopIteration as end:
            return float(end.value)


def climb(
    start: float,
    low: float,
    high: float,
    *,
    step: float = 1.5,
    tolerance: float = 1e-5,
    trials: int = 60,
) -> Generator[float, float, float]:
    """Where a smooth function of one number is largest: climb to a bracket, then Brent's method.

    Yields where the function is to be evaluated next and is sent its value there; `trials` times
    at most once there is a bracket.
    """
    middle, best = start, (yield start)
    left, right = max(low, start - step), min(high, start + step)
    at_left = yield left
    at_right = yield right
    while at_left > best and left > low:
        middle, best, right, at_right = left, at_left, middle, best
        step *= 2.0
        left = max(low, left - step)
        at_left = yield left
    while at_right > best and right < high:
        middle, best, left, at_left = right, at_right, middle, best
        step *= 2.0
        right = min(high, right + step)
        at_right = yield right
    if max(at_left, at_right) > best:  # it still climbs at a bound
        return left if at_left > at_right else right
    second, third = (left, right) if at_left > at_right else (right, left)
    at_second, at_third = max(at_left, at_right), min(at_left, at_right)
    previous = last = right - left
    for _ in range(trials):
        if right - left < tolerance:
            break
        p, q = (middle - second) * (best - at_third), (middle - third) * (best - at_second)
        bottom = 2.0 * (p - q)
        top = (middle - second) * p - (middle - third) * q
        move = -top / bottom if bottom != 0.0 else math.inf
        if abs(move) < tolerance:  # the parabola through the best three points peaks here
            break
        if not (left < middle + move < right) or abs(move) > abs(previous) / 2:
            move = 0.381966 * ((right if middle - left < right - middle else left) - middle)
        previous, last = last, move
        trial = middle + move
        value = yield trial
        if value > best:
            left, right = (middle, right) if trial > middle else (left, middle)
            third, at_third, second, at_second = second, at_second, middle, best
            middle, best = trial, value
        else:
            left, right = (left, trial) if trial > middle else (trial, right)
            if value > at_second:
                third, at_third, second, at_second = second, at_second, trial, value
            elif value > at_third:
                third, at_third = trial, value
    return middle
