"""Gradient descent as the filter with one particle."""

from typing import Any

import torch

from ..particles import Ensemble
from .averaging import AveragingParticles


class GradientDescent(AveragingParticles):
    """One particle: with `torch.optim.SGD` this *is* SGD, bit for bit."""

    def __init__(
        self, particles: Ensemble, optimizer: torch.optim.Optimizer, **options: Any
    ) -> None:
        super().__init__(particles, optimizer, **options)
        if particles.n != 1:
            raise ValueError(f"gradient descent has one particle, got an ensemble of {particles.n}")
