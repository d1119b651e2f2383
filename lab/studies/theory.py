r"""The figure and the tables of docs/theory.md: `python lab/studies/theory.py --figure PATH`.

They are measured on one-dimensional problems that run in seconds. One parameter x per particle, 32
particles from N(0, 1), 8 losses, Wasserstein-1 between the final sets:

    linear    L_t(x) = g_t x + b_t
    logistic  L_t(x) = sum_n log(1 + e^{-y_n (a_n x + c_n)}), four points n per loss
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial, reduce
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orderless.ensemble import Ensemble
from orderless.filters import (
    AveragingParticles,
    BootstrapParticleFilter,
    GradientDescent,
    WeightedParticleFilter,
)
from orderless_lab import theory
from orderless_lab.report.figures import new_figure
from orderless_lab.text import markdown_table
from orderless_lab.theory.measure import ParticleLoss
from orderless_lab.theory.sets import Filter, Loss, Represent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTH = 8
SIGMA2 = 1 / 16
PARTICLES = 32
ROUNDING = 1e-12  # smaller discrepancies are rounding errors, which differ between machines
HALVINGS = [2.0**-power for power in range(3, 10)]
SIZES = [32, 256, 2048]
NOISES = [SIGMA2, 2.0**-30]
SWAPS = [1, 4, 8, 14, 20, 28]  # shown in the table
BY_GRADIENT = {
    "weighted": WeightedParticleFilter,
    "averaging": AveragingParticles,
    "descent": GradientDescent,
}


class Point(nn.Module):
    """A network whose output is its d parameters, drawn from N(0, 1) in float64."""

    def __init__(self, dimension: int = 1) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(dimension, dtype=torch.float64))

    def forward(self) -> Tensor:
        return self.x


def make_filter(
    kind: str, sigma2: float = SIGMA2, *, n: int = PARTICLES, dimension: int = 1, seed: int = 0
) -> Filter:
    """A filter over `Point`s, by a key of `BY_GRADIENT`; "sir" adds noise of variance `sigma2`."""
    particles = Ensemble(lambda: Point(dimension), 1 if kind == "descent" else n, seed=seed)
    if kind == "sir":
        return BootstrapParticleFilter(particles, perturbation=sigma2**0.5)
    optimizer = torch.optim.SGD(particles.parameters(), lr=sigma2)
    return BY_GRADIENT[kind](particles, optimizer)


def linear_losses(length: int = LENGTH, dimension: int = 1, seed: int = 0) -> list[Loss]:
    """L_t(x) = g_t . x + b_t with standard normal g_t and b_t."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(length, dimension + 1, generator=generator, dtype=torch.float64)
    return [lambda x, draw=draw: x @ draw[:-1] + draw[-1] for draw in draws]


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
    return [lambda particles, loss=loss: loss(theory.positions_of(particles)) for loss in losses]


CURVES = {
    "bootstrap (SIR), logistic": ("sir", SIGMA2, logistic_losses),
    "gradient descent, logistic": ("descent", SIGMA2, logistic_losses),
    "weighted, logistic": ("weighted", SIGMA2, logistic_losses),
    r"weighted, logistic, half $\sigma^2$": ("weighted", SIGMA2 / 2, logistic_losses),
    r"weighted, logistic, quarter $\sigma^2$": ("weighted", SIGMA2 / 4, logistic_losses),
    "weighted, linear": ("weighted", SIGMA2, linear_losses),
}


def measure_curves(per_distance: int = 4) -> dict[str, theory.OrderDependence]:
    """Discrepancy against swaps for each of `CURVES`, in `per_distance` orders per distance."""
    orders = [
        theory.order_at_distance(LENGTH, swaps, seed)
        for swaps in range(1, LENGTH * (LENGTH - 1) // 2 + 1)
        for seed in range(per_distance)
    ]
    return {
        label: theory.measure_order_dependence(
            partial(make_filter, kind, sigma2), as_closures(losses()), orders, theory.wasserstein_1
        )
        for label, (kind, sigma2, losses) in CURVES.items()
    }


def backwards_gap(kind: str, sigma2: float, *, n: int = PARTICLES, seed: int = 0) -> float:
    """Discrepancy between the logistic losses forwards and backwards."""
    measured = theory.measure_order_dependence(
        partial(make_filter, kind, sigma2, n=n, seed=seed),
        as_closures(logistic_losses()),
        [list(range(LENGTH))[::-1]],
        theory.wasserstein_1,
    )
    return float(measured.discrepancy[0])


def measure_halvings(kind: str, sigma2s: list[float]) -> np.ndarray:
    """`backwards_gap` at each sigma^2."""
    return np.array([backwards_gap(kind, sigma2) for sigma2 in sigma2s])


def measure_bootstrap(sizes: list[int], sigma2s: list[float], seeds: int = 2) -> np.ndarray:
    """The bootstrap filter's `backwards_gap`, mean over seeds: `[sigma^2, size]`."""
    cells = product(sigma2s, sizes, range(seeds))
    gaps = [backwards_gap("sir", sigma2, n=n, seed=seed) for sigma2, n, seed in cells]
    return np.reshape(gaps, (len(sigma2s), len(sizes), seeds)).mean(2)


def number(value: float) -> str:
    """Three digits, or "< 1e-12" for a rounding error."""
    return f"< {ROUNDING:.0e}" if value < ROUNDING else f"{value:.3g}"


def curves_table(curves: Mapping[str, theory.OrderDependence]) -> str:
    """Mean discrepancy at a few numbers of swaps, as Markdown."""
    means = {label: curve.by_swaps() for label, curve in curves.items()}
    rows = [[label, *(number(mean[swaps]) for swaps in SWAPS)] for label, mean in means.items()]
    return markdown_table(["filter and losses", *(f"N = {swaps}" for swaps in SWAPS)], rows)


def halvings_table(gaps: Mapping[str, np.ndarray]) -> str:
    """The factor by which the gap falls at each halving of sigma^2, as Markdown."""
    rows = []
    for row, sigma2 in enumerate(HALVINGS):
        texts = [f"1/{round(1 / sigma2)}"]
        for gap in gaps.values():
            texts += [number(gap[row]), f"{gap[row - 1] / gap[row]:.2f}" if row else ""]
        rows.append(texts)
    headings = [text for kind in gaps for text in (f"{kind}: D", "falls by")]
    return markdown_table(["sigma^2", *headings], rows)


def bootstrap_table(gaps: np.ndarray) -> str:
    """The bootstrap filter's gap against its number of particles, as Markdown."""
    rows = [
        [f"2^{round(np.log2(noise))}", *map(number, row)]
        for noise, row in zip(NOISES, gaps, strict=True)
    ]
    return markdown_table(["noise variance", *(f"{n} particles" for n in SIZES)], rows)


def bounds_table(length: int = 4) -> str:
    """Theorem 1 for the weighted filter, losses forwards against backwards, as Markdown.

    For both readings of its sets: the proof's constants and bound, `direct_bound` with those of its
    own proof (of the two runs), and the measurement.
    """
    backwards = list(range(length))[::-1]
    mixture = theory.GridMixture(theory.grid(-8.0, 8.0, 801), SIGMA2)
    readings: dict[str, Represent] = {"points": lambda p: p, "mixture": mixture}
    problems = {"linear": linear_losses(length), "logistic": logistic_losses(length)}
    start = theory.filter_set(make_filter("weighted"))
    update = theory.FilterUpdate(make_filter("weighted"))
    D = theory.wasserstein_1
    rows = []
    for name, losses in problems.items():
        runs = losses, losses[::-1]
        ends = [reduce(update, run, start) for run in runs]
        for reading, represent in readings.items():
            found = theory.constants_of_swaps(
                update, start, losses, backwards, D, represent=represent
            )
            bound = theory.theorem_1(found.C, found.epsilon, length, length * (length - 1) // 2)
            along = [
                theory.constants_of_trajectory(
                    update, start, represent(start), run, D, represent=represent
                )
                for run in runs
            ]
            C = max(constants.C for constants in along)
            epsilon = max(constants.epsilon for constants in along)
            direct = theory.direct_bound(C, epsilon, length)
            values = found.epsilon, bound, direct, D(*map(represent, ends))
            growth = f"{found.C:.3g}" if found.C else "none"  # no two sets to compare
            rows.append([name, reading, growth, *map(number, values)])
    headings = ["losses", "reading", "C", "epsilon", "Theorem 1", "direct bound", "measured D"]
    return markdown_table(headings, rows, left=2)


def draw(curves: Mapping[str, theory.OrderDependence], gaps: Mapping[str, np.ndarray]) -> Figure:
    """Left: discrepancy against swaps. Right: forwards against backwards as sigma^2 halves."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
    for place, (label, curve) in enumerate(curves.items()):
        means = curve.by_swaps()
        color = f"C{place}"
        left.plot(means.keys(), np.maximum(list(means.values()), 1e-18), color=color, label=label)
        values = np.maximum(curve.discrepancy, 1e-18)
        left.plot(curve.swaps, values, ".", color=color, alpha=0.45, ms=5, mew=0)
    left.set(
        yscale="log",
        xlabel="adjacent swaps N",
        ylabel="Wasserstein-1 to the given order",
        title=rf"T = 8 losses in other orders, $\sigma^2$ = 1/{round(1 / SIGMA2)}",
    )
    left.grid(alpha=0.25)
    left.legend(frameon=False, fontsize=8, loc="center", bbox_to_anchor=(0.5, 0.42), ncols=2)
    for kind, gap in gaps.items():
        right.plot(HALVINGS, gap, "o-", ms=4, lw=1.4, label=kind)
    guide = np.array([HALVINGS[-1], HALVINGS[0]])
    lowest = min(gap[-1] for gap in gaps.values())
    right.plot(guide, lowest / 2 * (guide / guide[0]) ** 2, "k--", lw=1, label=r"$\sigma^4$")
    right.set_xscale("log", base=2)
    right.set(yscale="log", xlabel=r"$\sigma^2$", title="Logistic losses, forwards and backwards")
    right.grid(alpha=0.25)
    right.legend(frameon=False, fontsize=8)
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python lab/studies/theory.py", description=__doc__)
    parser.add_argument("--figure", type=Path, default=Path("discrepancy_vs_swaps.png"))
    parser.add_argument("--orders", type=int, default=4, help="orders per number of swaps")
    options = parser.parse_args(arguments)
    if options.orders < 1:
        parser.error(f"--orders must be at least 1, got {options.orders}")
    curves = measure_curves(options.orders)
    # The order of the curves, so that a filter has the same colour in both panels.
    kinds = {"sir": "bootstrap (SIR)", "descent": "gradient descent", "weighted": "weighted"}
    gaps = {label: measure_halvings(kind, HALVINGS) for kind, label in kinds.items()}
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    draw(curves, gaps).savefig(options.figure, dpi=130)
    print(curves_table(curves), halvings_table(gaps), sep="\n")
    print(bootstrap_table(measure_bootstrap(SIZES, NOISES)), bounds_table(), sep="\n")
    print(f"wrote {options.figure}")


if __name__ == "__main__":
    main()
