"""Filters over disjoint particles as one: how N networks are trained by several processes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..ensemble import Ensemble
from ..ensemble.stacking import check_same_layers
from .gradient import GradientFilter

Filter = TypeVar("Filter", bound=GradientFilter)


@torch.no_grad()
def merge_filters(filters: Sequence[Filter]) -> Filter:
    """One filter over the particles of all, with the weights and evidence of a single process.

    Particle i depends on (seed, i) alone, so processes that do not talk to each other may train
    `Ensemble(make, n=100, indices=range(0, 50))` and `indices=range(50, 100)` on the same data.
    The particles, their optimizer states and their noise go on as if they had never been apart.
    Registered penalties are not merged: register them anew.

    >>> import torch, orderless as ol
    >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
    >>> loss = ol.per_particle(torch.nn.functional.cross_entropy)
    >>> def train(indices):
    ...     particles = ol.Ensemble(lambda: torch.nn.Linear(3, 2), n=4, seed=0, indices=indices)
    ...     optimizer = torch.optim.SGD(particles.parameters(), lr=0.1)
    ...     pf = ol.WeightedParticleFilter(particles, optimizer)
    ...     pf.step(lambda: loss(particles(x), y))
    ...     return pf
    >>> both = ol.merge_filters([train(range(0, 2)), train(range(2, 4))])
    >>> torch.allclose(both.weights, train(range(4)).weights)
    True
    """
    filters = list(filters)
    if not filters:
        raise ValueError("merge_filters needs at least one filter, got none")
    first = filters[0]
    for other in filters[1:]:
        _check_fits(first, other)
    parts = [part.particles for part in filters]
    order = torch.cat([particles.indices for particles in parts]).argsort()
    if len(torch.cat([particles.indices for particles in parts]).unique()) < len(order):
        raise ValueError("these filters share particles: their indices must be disjoint")
    particles = _joined(parts, order)
    merged = copy.copy(first)
    merged.particles = particles
    merged.optimizer = _joined_optimizer(filters, particles, order)
    log_weights, evidence = first.joined_log_weights(filters)
    merged.raw_log_weights = log_weights[order]
    merged._log_evidence = evidence
    merged.alive = torch.cat([part.alive for part in filters])[order]
    merged.steps = first.steps.clone()
    merged._failed = torch.zeros_like(first._failed)
    merged.hooks = []
    return merged


def _check_fits(first: GradientFilter, other: GradientFilter) -> None:
    """Raise if two filters are not parts of one training."""
    if type(first) is not type(other) or first.weighting != other.weighting:
        raise ValueError(f"these filters are of different kinds: {first} and {other}")
    if first.particles.seed != other.particles.seed:
        raise ValueError(
            f"these filters have seeds {first.particles.seed} and {other.particles.seed}: they are "
            "not parts of one ensemble"
        )
    if int(first.steps) != int(other.steps):
        raise ValueError(
            f"these filters have taken {int(first.steps)} and {int(other.steps)} steps: train all "
            "parts on the same data"
        )
    check_same_layers(
        first.particles.template, other.particles.template, "these filters are of other networks"
    )


def _joined(parts: Sequence[Ensemble], order: Tensor) -> Ensemble:
    networks = [particles[i] for particles in parts for i in range(particles.n)]
    indices = torch.cat([particles.indices for particles in parts])
    first = parts[0]
    joined = Ensemble.from_modules(
        [networks[i] for i in order.tolist()],
        seed=first.seed,
        indices=indices[order].tolist(),
        chunk_size=first.chunk_size,
        precision=first.precision,
        device=first.device,
    )
    joined.train(first.training)
    joined.noise_counter.copy_(first.noise_counter)
    return joined


def _joined_optimizer(
    filters: Sequence[GradientFilter], particles: Ensemble, order: Tensor
) -> torch.optim.Optimizer:
    """An optimizer of the first one's kind and groups, with the states of all particles."""
    first = filters[0].optimizer
    names = {parameter: name for name, parameter in filters[0].particles.named_parameters()}
    ours = dict(particles.named_parameters())
    groups = [
        {**group, "params": [ours[names[p]] for p in group["params"]]}
        for group in first.param_groups
    ]
    optimizer: torch.optim.Optimizer = type(first)(groups)  # type: ignore[call-arg]
    states = [part.optimizer.state_dict()["state"] for part in filters]

    def join(number: int, name: str) -> Any:
        values = [state[number][name] for state in states]
        of_particles = isinstance(values[0], Tensor) and values[0].dim() > 0
        return torch.cat(values)[order] if of_particles else copy.copy(values[0])

    joined = {
        number: {name: join(number, name) for name in state} for number, state in states[0].items()
    }
    optimizer.load_state_dict({**first.state_dict(), "state": joined})
    return optimizer
