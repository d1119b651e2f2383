"""Log-weights, float64 and on the device, and what a rule sees that changes them in a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


def normalize(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """`(log w - log sum w, log sum w)`: weights that sum to one, and their sum before."""
    total = torch.logsumexp(log_weights, 0)
    return log_weights - total, total


def log_mean(log_values: Tensor) -> Tensor:
    """The logarithm of the mean of e^values `[N]`."""
    return torch.logsumexp(log_values, 0) - torch.logsumexp(torch.zeros_like(log_values), 0)


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """ESS = 1 / sum w^2 of normalised weights: 1 if one particle has all of it, N if all share."""
    return torch.exp(-torch.logsumexp(2.0 * log_weights, 0))


def temper(log_weights: Tensor, temperature: Tensor | float) -> Tensor:
    """w^tau, normalised. A weight of 0 stays 0, also at tau = 0."""
    powered = torch.where(log_weights.isneginf(), log_weights, temperature * log_weights)
    return normalize(powered)[0]


def temperature_for(log_weights: Tensor, min_ess: float) -> Tensor:
    """The largest tau <= 1 with ESS(w^tau) >= min(min_ess, number of positive weights).

    ESS falls as tau grows, so bisection finds tau. 60 halvings exhaust float64; their number is
    fixed so that the GPU never waits for the host.
    """
    positive = (~log_weights.isneginf()).sum()
    wanted = torch.clamp(positive.double(), max=float(min_ess))
    wanted = wanted * (1 - 1e-12)  # the ESS of uniform weights may be rounded below N
    low, high = torch.zeros_like(wanted), torch.ones_like(wanted)
    enough = effective_sample_size(log_weights) >= wanted
    for _ in range(60):
        middle = (low + high) / 2
        holds = effective_sample_size(temper(log_weights, middle)) >= wanted
        low, high = torch.where(holds, middle, low), torch.where(holds, high, middle)
    return torch.where(enough, torch.ones_like(low), low)


@dataclass(frozen=True)
class Step:
    """What a weighting sees of one step: tensors `[N]`.

    The energy is the loss, plus the penalty if it is weighed, in float64.
    """

    energy_before: Tensor  # at x_t
    energy_after: Tensor  # at x_{t+1}; of no meaning for a weighting that does not read it
    slope: Tensor  # <grad energy(x_t), x_{t+1} - x_t>; the same
    alive: Tensor
    log_weights: Tensor


class Weighting(ABC):
    """A rule for the weights: `weighting(step)` is the increment of the log-weights `[N]`.

    A rule that needs more than `step.energy_before` declares it in `reads`: `"energy_after"`, for
    which the closure is called again, or `"slope"`, for which it is not.

    >>> import torch, orderless as ol
    >>> class Tempered(ol.Weighting):  # a tenth of the likelihood where the step began
    ...     def __call__(self, step):
    ...         return -0.1 * step.energy_before
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(2, 1), n=3)
    >>> adam = torch.optim.Adam(particles.parameters())
    >>> ol.GradientFilter(particles, adam, weighting=Tempered()).ess
    tensor(3.0000, dtype=torch.float64)
    """

    reads: ClassVar[str | None] = None

    @abstractmethod
    def __call__(self, step: Step) -> Tensor: ...
