r"""The measurements behind docs/theory.md, on one-dimensional problems that run in seconds.

One parameter x per particle, 32 particles from N(0, 1), 8 losses, Wasserstein-1 between the ends:

    linear    L_t(x) = g_t x + b_t
    logistic  L_t(x) = sum_n log(1 + e^{-y_n (a_n x + c_n)}), four points n per loss
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orderless.filters import (
    AveragingParticles,
    BootstrapParticleFilter,
    GradientDescent,
    WeightedParticleFilter,
)
from orderless.filters.step import SteppedFilter
from orderless.particles import Ensemble
from orderless.theory.bounds import direct_bound, theorem_1
from orderless.theory.constants import Constants, constants_of_swaps, constants_of_trajectory
from orderless.theory.discrepancy import wasserstein_1
from orderless.theory.measure import OrderDependence, ParticleLoss, measure_order_dependence
from orderless.theory.orders import adjacent_swaps, order_at_distance
from orderless.theory.sets import (
    FilterUpdate,
    GridMixture,
    Loss,
    Represent,
    filter_set,
    grid,
    positions_of,
)

LENGTH = 8
SIGMA2 = 1 / 16
PARTICLES = 32


class Point(nn.Module):
    """A network that is nothing but its d parameters, from N(0, 1), in float64."""

    def __init__(self, dimension: int = 1) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(dimension, dtype=torch.float64))

    def forward(self) -> Tensor:
        return self.x


def make_filter(
    kind: str, sigma2: float = SIGMA2, *, n: int = PARTICLES, dimension: int = 1, seed: int = 0
) -> SteppedFilter:
    """A filter over `Point`s: `"weighted"`, `"averaging"`, `"descent"`, `"sir"` or `"paper"`.

    The last two are the bootstrap filter's variants, with noise of variance `sigma2`.
    """
    particles = Ensemble(lambda: Point(dimension), 1 if kind == "descent" else n, seed=seed)
    if kind in ("sir", "paper"):
        return BootstrapParticleFilter(particles, perturbation=sigma2**0.5, variant=kind)
    kinds = {
        "weighted": WeightedParticleFilter,
        "averaging": AveragingParticles,
        "descent": GradientDescent,
    }
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, sir, paper, got {kind!r}")
    return kinds[kind](particles, torch.optim.SGD(particles.parameters(), lr=sigma2))


def linear_losses(length: int = LENGTH, dimension: int = 1, seed: int = 0) -> list[Loss]:
    """L_t(x) = g_t . x + b_t with standard normal g_t and b_t."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(length, dimension + 1, generator=generator, dtype=torch.float64)
    return [lambda x, draw=draw: x @ draw[:-1] + draw[-1] for draw in draws]  # type: ignore[misc]


def logistic_losses(length: int = LENGTH, dimension: int = 1, seed: int = 0) -> list[Loss]:
    """L_t(x) = sum_n log(1 + e^{-y_n (a_n . x + c_n)}) over four random points n; at least 0."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(length, 4, dimension + 1, generator=generator, dtype=torch.float64)
    signs = torch.randint(0, 2, (length, 4), generator=generator).double() * 2 - 1

    def make(points: Tensor, sign: Tensor) -> Loss:
        return lambda x: F.softplus(-sign * (x @ points[:, :-1].T + points[:, -1])).sum(1)

    return [make(points, sign) for points, sign in zip(features, signs, strict=True)]


def as_closures(losses: list[Loss]) -> list[ParticleLoss]:
    """Losses of positions as losses of an ensemble, for `measure_order_dependence`."""
    return [lambda particles, loss=loss: loss(positions_of(particles)) for loss in losses]  # type: ignore[misc]


CURVES: dict[str, tuple[str, float, Callable[[], list[Loss]]]] = {
    "bootstrap (SIR), logistic": ("sir", SIGMA2, logistic_losses),
    "gradient descent, logistic": ("descent", SIGMA2, logistic_losses),
    "weighted, logistic": ("weighted", SIGMA2, logistic_losses),
    r"weighted, logistic, half $\sigma^2$": ("weighted", SIGMA2 / 2, logistic_losses),
    r"weighted, logistic, quarter $\sigma^2$": ("weighted", SIGMA2 / 4, logistic_losses),
    "weighted, linear": ("weighted", SIGMA2, linear_losses),
}


def measure_curves(per_distance: int = 4) -> dict[str, OrderDependence]:
    """Discrepancy against swaps for each of `CURVES`; at each distance this many orders."""
    orders = [
        order_at_distance(LENGTH, swaps, seed)
        for swaps in range(1, LENGTH * (LENGTH - 1) // 2 + 1)
        for seed in range(per_distance)
    ]
    return {
        label: measure_order_dependence(
            lambda kind=kind, sigma2=sigma2: make_filter(kind, sigma2),  # type: ignore[misc]
            as_closures(losses()),
            orders,
            wasserstein_1,
        )
        for label, (kind, sigma2, losses) in CURVES.items()
    }


def backwards_gap(kind: str, sigma2: float, *, n: int = PARTICLES, seed: int = 0) -> float:
    """Discrepancy between the logistic losses forwards and backwards."""
    measured = measure_order_dependence(
        lambda: make_filter(kind, sigma2, n=n, seed=seed),
        as_closures(logistic_losses()),
        [list(range(LENGTH))[::-1]],
        wasserstein_1,
    )
    return float(measured.discrepancy[0])


def measure_halvings(kind: str, sigma2s: list[float]) -> np.ndarray:
    """`backwards_gap` at each sigma^2."""
    return np.array([backwards_gap(kind, sigma2) for sigma2 in sigma2s])


def measure_bootstrap(sizes: list[int], sigma2s: list[float], seeds: int = 2) -> np.ndarray:
    """The bootstrap filter's `backwards_gap`, mean over seeds: `[sigma^2, size]`."""
    return np.array(
        [
            [np.mean([backwards_gap("sir", s, n=n, seed=i) for i in range(seeds)]) for n in sizes]
            for s in sigma2s
        ]
    )


@dataclass(frozen=True)
class CheckedBound:
    """Theorem 1 for one filter: constants on its proof's sets, the bound, and what happened.

    `direct` is `direct_bound` with the constants of its own proof: those of the two runs.
    """

    losses: str
    reading: str
    constants: Constants
    bound: float
    direct: float
    measured: float


def check_theorem_1(length: int = 4, sigma2: float = SIGMA2) -> list[CheckedBound]:
    """The weighted filter, losses forwards against backwards, in both readings of its sets."""
    forwards, backwards = list(range(length)), list(range(length))[::-1]
    mixture = GridMixture(grid(-8.0, 8.0, 801), sigma2)
    readings: dict[str, Represent] = {"points": lambda p: p, "mixture": mixture}
    problems = {"linear": linear_losses(length), "logistic": logistic_losses(length)}
    start = filter_set(make_filter("weighted", sigma2))
    update = FilterUpdate(make_filter("weighted", sigma2))
    rows = []
    for name, losses in problems.items():
        runs = [[losses[t] for t in order] for order in (forwards, backwards)]
        ends = [reduce(update, run, start) for run in runs]
        for reading, represent in readings.items():
            constants = constants_of_swaps(
                update, start, losses, backwards, wasserstein_1, represent=represent
            )
            bound = theorem_1(constants.C, constants.epsilon, length, adjacent_swaps(backwards))
            along = [
                constants_of_trajectory(
                    update, start, represent(start), run, wasserstein_1, represent=represent
                )
                for run in runs
            ]
            direct = direct_bound(max(c.C for c in along), max(c.epsilon for c in along), length)
            measured = wasserstein_1(*map(represent, ends))
            rows.append(CheckedBound(name, reading, constants, bound, direct, measured))
    return rows
