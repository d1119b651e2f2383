"""Small networks in float64, and tasks of nine points for them."""

import torch
from torch import nn

import orderless as ol


def particles(n: int = 3) -> ol.Ensemble:
    make = lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))  # noqa: E731
    return ol.Ensemble(make, n, seed=5).double()


def task(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    return x, (x[:, number % 3] > 0).long()
