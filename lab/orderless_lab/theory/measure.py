"""The measured order dependence of a filter: discrepancy against number of adjacent swaps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderless.ensemble import Ensemble

from .discrepancy import Discrepancy, root_energy_distance
from .orders import adjacent_swaps
from .sets import Filter, WeightedSet, filter_set

ParticleLoss = Callable[[Ensemble], Tensor]


@dataclass(frozen=True)
class OrderDependence:
    """The discrepancy between the results in the given order 0 ... T-1 and in other orders.

    `swaps` `[K]` (adjacent swaps from the given order), `discrepancy` `[K]`.
    """

    swaps: NDArray[np.int64]
    discrepancy: NDArray[np.float64]

    def by_swaps(self) -> dict[int, float]:
        """The mean discrepancy at each number of swaps, ascending."""
        return {int(n): self.discrepancy[self.swaps == n].mean() for n in np.unique(self.swaps)}


def measure_order_dependence(
    make_filter: Callable[[], Filter],
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
    given = list(range(len(losses)))
    for order in orders:
        if sorted(order) != given:
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

    reference = result(given)
    return OrderDependence(
        swaps=np.array([adjacent_swaps(order) for order in orders]),
        discrepancy=np.array([discrepancy(reference, result(order)) for order in orders]),
    )
