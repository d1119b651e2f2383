"""Small networks in float64, and tasks of nine points for them."""

import torch
from tests.common import normal
from torch import nn

import orderless as ol


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def particles(n: int = 3, make=network, seed: int = 5) -> ol.Ensemble:
    return ol.Ensemble(make, n, seed=seed).double()


def task(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = normal(9, 3, seed=number, dtype=torch.float64)
    return x, (x[:, number % 3] > 0).long()


@torch.no_grad()
def wander(ensemble: ol.Ensemble, seed: int = 7) -> None:
    """Elsewhere, as after some training."""
    for number, p in enumerate(ensemble.parameters()):
        p.add_(0.3 * normal(*p.shape, seed=100 * seed + number, dtype=p.dtype))
