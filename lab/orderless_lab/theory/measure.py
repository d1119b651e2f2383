"""The measured order dependence of a filter: discrepancy against number of adjacent swaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderless.ensemble import Ensemble
from orderless.filters.step import SteppedFilter

from .discrepancy import Discrepancy, root_energy_distance
from .orders import adjacent_swaps
from .sets import WeightedSet, filter_set

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ParticleLoss = Callable[[Ensemble], Tensor]


@dataclass(frozen=True)
class OrderDependence:
    """The discrepancy between the results in the given order 0 ... T-1 and in other orders.

    `orders` `[K, T]`, `swaps` `[K]` (adjacent swaps from the given order), `discrepancy` `[K]`.
    """

    orders: NDArray[np.int64]
    swaps: NDArray[np.int64]
    discrepancy: NDArray[np.float64]

    def by_swaps(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Distinct numbers of swaps, ascending, and the mean discrepancy at each."""
        swaps = np.unique(self.swaps)
        return swaps, np.array([self.discrepancy[self.swaps == n].mean() for n in swaps])


def measure_order_dependence(
    make_filter: Callable[[], SteppedFilter],
    losses: Sequence[ParticleLoss],
    orders: Sequence[Sequence[int]],
    discrepancy: Discrepancy = root_energy_distance,
) -> OrderDependence:
    """Run a filter over `losses` in the given order and in each of `orders`, and compare results.

    Args:
        make_filter: returns a new filter; the same one in every call (same seed).
        losses: L_1 ... L_T, each `loss(particles) -> [N]`, used as the closure of one step.
        orders: permutations of 0 ... T-1, for example from `order_at_distance`.
        discrepancy: D between weighted sets whose positions are all parameters of a particle.
    """
    places = list(range(len(losses)))
    for order in orders:
        if sorted(order) != places:
            raise ValueError(f"an order must hold 0 ... {len(losses) - 1} once each, got {order}")
    start = filter_set(make_filter())

    def result(order: Sequence[int]) -> WeightedSet:
        particle_filter = make_filter()
        if not all(map(torch.equal, start, filter_set(particle_filter))):
            raise ValueError(
                "make_filter must make the same particles in every call, or the results differ for "
                "other reasons than the order: give the ensemble a fixed seed"
            )
        for place in order:
            particle_filter.step(partial(losses[place], particle_filter.particles))
        return filter_set(particle_filter)

    reference, *results = map(result, [places, *orders])
    return OrderDependence(
        orders=np.array([list(order) for order in orders], np.int64).reshape(-1, len(losses)),
        swaps=np.array([adjacent_swaps(order) for order in orders], np.int64),
        discrepancy=np.array([discrepancy(reference, each) for each in results], np.float64),
    )


def plot_order_dependence(
    measured: OrderDependence | Mapping[str, OrderDependence],
    *,
    title: str = "Discrepancy between two orders",
    discrepancy_name: str = "D",
    floor: float = 1e-18,
    axes: Any = None,
) -> Figure:
    """Plot discrepancy against adjacent swaps, logarithmic: means as lines, orders as dots.

    `floor`: where a discrepancy of 0 is drawn. `axes`: the matplotlib axes to draw into.
    """
    from matplotlib.figure import Figure

    if axes is None:
        axes = Figure(figsize=(6.4, 4.4), layout="constrained").add_subplot()
    curves = {"": measured} if isinstance(measured, OrderDependence) else measured
    for number, (label, curve) in enumerate(curves.items()):
        swaps, means = curve.by_swaps()
        color = f"C{number}"
        axes.plot(swaps, np.maximum(means, floor), color=color, label=label or None, lw=1.6)
        values = np.maximum(curve.discrepancy, floor)
        axes.plot(curve.swaps, values, ".", color=color, alpha=0.45, ms=5, mew=0)
    axes.set(yscale="log", xlabel="adjacent swaps N", ylabel=discrepancy_name, title=title)
    axes.grid(alpha=0.25, which="major")
    if any(curves):
        axes.legend(frameon=False, fontsize=8)
    return axes.figure  # type: ignore[no-any-return]
