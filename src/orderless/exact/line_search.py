"""The maximum of a smooth function of one number, evaluated at several points at a time."""

from collections.abc import Callable

from torch import Tensor

_EACH_SIDE = 4  # points on each side of the centre


def maximize(
    function: Callable[[list[float]], Tensor],
    centre: float,
    low: float,
    high: float,
    *,
    width: float,
    tolerance: float,
) -> float:
    """Evaluate points within `centre` +- `width`, then closer around the best of them, until they
    are `tolerance` apart; finally fit a parabola through the best three. While an outermost point
    is the best, move there, within `low` and `high`."""
    while True:
        centre = min(max(centre, low + width), high - width)
        step = width / _EACH_SIDE
        points = [centre + k * step for k in range(-_EACH_SIDE, _EACH_SIDE + 1)]
        values = function(points).tolist()
        best = max(range(len(points)), key=values.__getitem__)
        inside = 0 < best < len(points) - 1
        centre = points[best]
        if inside:
            centre += step * vertex(*values[best - 1 : best + 2])
        if inside or not low + 1e-9 < centre < high - 1e-9:
            if step <= tolerance:
                return centre
            width = step


def vertex(left: float, middle: float, right: float) -> float:
    """The maximum of the parabola through values at -1, 0 and 1, at most 1 away."""
    bend = left - 2.0 * middle + right
    if bend >= 0.0:
        return float(right > left) - float(right < left)
    return min(max(0.5 * (left - right) / bend, -1.0), 1.0)
