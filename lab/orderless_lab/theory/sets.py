r"""Weighted particle sets $\hat p = \sum_i w^{(i)} \delta(x - x^{(i)})$ and their updates.

A set is positions `[N, d]` and log-weights `[N]`. A density on a grid is such a set as well, so
that Bayes updates and discrepancies apply to both. A loss is a function of positions, `[N, d]` to
`[N]`, which can be evaluated at particles and on grids.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from orderless.ensemble import Ensemble
from orderless.filters import ParticleFilter as Filter


class WeightedSet(NamedTuple):
    """`positions` `[N, d]` and `log_weights` `[N]`, which need not be normalised."""

    positions: Tensor
    log_weights: Tensor


Loss = Callable[[Tensor], Tensor]
Update = Callable[[WeightedSet, Loss], WeightedSet]
Represent = Callable[[WeightedSet], WeightedSet]


def checked(p: WeightedSet | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(positions `[N, d]`, weights `[N]` that sum to 1), both float64 and detached."""
    positions, log_weights = (tensor.detach().double() for tensor in p)
    weights = log_weights.softmax(0)
    if positions.dim() != 2 or weights.shape != positions.shape[:1]:
        raise ValueError(
            "a weighted set has positions [N, d] and log_weights [N], got "
            f"{tuple(positions.shape)} and {tuple(weights.shape)}"
        )
    if not (positions.isfinite().all() and weights.isfinite().all()):
        raise ValueError("positions and weights of a weighted set must be finite")
    return positions, weights


def bayes_update(p: WeightedSet, loss: Loss) -> WeightedSet:
    r"""The true posterior $p(x) e^{-L(x)} / \int p e^{-L}$: log w -= L(x), positions are kept."""
    with torch.no_grad():
        log_weights = p.log_weights.double() - loss(p.positions).double()
    return WeightedSet(p.positions, log_weights.log_softmax(0))


def expected_loss(p: WeightedSet, loss: Loss) -> float:
    r"""$\mathbb{E}_{x \sim p}[L(x)]$."""
    positions, weights = checked(p)
    with torch.no_grad():
        return float(weights @ loss(positions).double())


def positions_of(particles: Ensemble) -> Tensor:
    """All parameters of each particle in one row, `[N, d]`; gradients flow through."""
    return torch.cat([parameter.flatten(1) for parameter in particles.parameters()], 1)


def filter_set(particle_filter: Filter) -> WeightedSet:
    """The current weighted set of a filter, as float64 copies."""
    positions = positions_of(particle_filter.particles).detach().double().clone()
    return WeightedSet(positions, particle_filter.log_weights)


class FilterUpdate:
    r"""A filter's update as the paper's map $(\hat p, L) \mapsto \hat p[L]$.

    Every call restores the filter's initial state, sets the positions and weights of the set, and
    takes one step. The map therefore depends on the set and the loss only: the optimizer's state is
    the same in each call, and a random filter (resampling, noise) draws the same numbers. Sets must
    have the filter's own N. Networks with buffers are refused, as their state is more than a set.
    """

    def __init__(self, particle_filter: Filter) -> None:
        if particle_filter.particles.particle_buffers():
            raise ValueError("a network with buffers is more than its position: use one without")
        self.filter = particle_filter
        self._state = particle_filter.state_dict()

    def __call__(self, p: WeightedSet, loss: Loss) -> WeightedSet:
        particles = self.filter.particles
        positions, weights = checked(p)
        self.filter.load_state_dict(
            {**self._state, "log_weights": weights.log(), "alive": weights > 0}
        )
        parameters = list(particles.parameters())
        parts = positions.split([parameter[0].numel() for parameter in parameters], 1)
        with torch.no_grad():
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.copy_(part.view_as(parameter))
        self.filter.step(lambda: loss(positions_of(particles)))
        return filter_set(self.filter)


def grid(low: float, high: float, points: int) -> Tensor:
    """Nodes on a line, evenly from `low` to `high`: `[points, 1]`."""
    return torch.linspace(low, high, points, dtype=torch.float64).unsqueeze(1)


class GridMixture:
    r"""The density $\tilde p(x) = Z \sum_i w^{(i)} e^{-|x - x^{(i)}|^2 / 2\sigma^2}$ on a grid.

    The particles of the weighted particle filter represent this density (section 3.4): the filter's
    update approximates the Bayes update of $\tilde p$, not of the points $\hat p$, whose Bayes
    update does not change positions.
    """

    def __init__(self, nodes: Tensor, sigma2: float) -> None:
        self.nodes = nodes
        self.sigma2 = sigma2

    def __call__(self, p: WeightedSet) -> WeightedSet:
        positions, weights = checked(p)
        squares = (self.nodes[:, None, :] - positions[None]).square().sum(2)
        log_density = torch.logsumexp(weights.log() - squares / (2 * self.sigma2), 1)
        return WeightedSet(self.nodes, log_density.log_softmax(0))
