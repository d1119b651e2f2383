"""N networks trained side by side with equal weights: the paper's "averaging particles"."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..ensemble import Ensemble
from .gradient import GradientFilter, GradientStep, Weighting


@dataclass(frozen=True)
class Uniform(Weighting):
    """Equal weights for all particles that are alive."""

    def __call__(self, step: GradientStep) -> Tensor:
        count = step.alive.sum().clamp(min=1).double()
        level = torch.where(step.alive, -count.log(), -torch.inf)
        return level - torch.where(step.filter.alive, step.log_weights, 0.0)


class AveragingParticles(GradientFilter):
    """A deep ensemble: gradient steps, uniform weights over the particles that are alive.

    `log_evidence` stays 0: nothing is weighed, so nothing is evidence.
    """

    def __init__(
        self, particles: Ensemble, optimizer: torch.optim.Optimizer, **options: Any
    ) -> None:
        super().__init__(particles, optimizer, weighting=Uniform(), **options)


class GradientDescent(AveragingParticles):
    """One particle: with `torch.optim.SGD` this *is* SGD, bit for bit."""

    def __init__(
        self, particles: Ensemble, optimizer: torch.optim.Optimizer, **options: Any
    ) -> None:
        super().__init__(particles, optimizer, **options)
        if particles.n != 1:
            raise ValueError(f"gradient descent has one particle, got an ensemble of {particles.n}")
