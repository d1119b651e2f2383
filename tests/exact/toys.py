"""Small data and heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tests.common import normal
from torch import Tensor, nn

import orderless as ol
from orderless.features import RandomReLU
from orderless.io import digest


def blobs(count: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ten classes in 12 dimensions, overlapping."""
    y = torch.arange(count) % 10
    return normal(10, 12, seed=99)[y] + 0.7 * normal(count, 12, seed=seed), y


X, Y = blobs()
PROBE = blobs(20, seed=1)[0]


def maps(n: int = 3, width: int = 40, seed: int = 0) -> ol.Ensemble:
    return ol.Ensemble(lambda: RandomReLU(12, width, bias_scale=0.3), n, seed=seed)


def fed(x: Tensor, y: Tensor, weight: Any = None, **options: Any) -> ol.ExactHead:
    head = ol.ExactHead(maps(), **options)
    head.update(x, y, sample_weight=weight)
    return head


def of_tasks(order: Iterable[int], **options: Any) -> ol.ExactHead:
    """Five tasks of two classes each."""
    head = ol.ExactHead(maps(), classes=2, **options)
    for task in order:
        rows = task == Y // 2
        head.update(X[rows], Y[rows] % 2, task=task)
    return head


def line(**options: Any) -> ol.ExactHead:
    """A regression on the inputs themselves."""
    return ol.ExactHead("linear", targets="values", **options)


def regression(n: int = 60, width: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs and targets that lie on the grid already, so that nothing is rounded away."""
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(n, width, generator=generator, dtype=torch.float64) * 256).round() / 256
    truth = torch.randn(width, generator=generator, dtype=torch.float64)
    y = x @ truth + 0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x.clamp(-8, 8), (y * 256).round() / 256


def same_sums(a: ol.ExactHead, b: ol.ExactHead) -> bool:
    return digest(a.state_dict()) == digest(b.state_dict())


def same_bits(a: ol.ExactHead, b: ol.ExactHead, x: Tensor = PROBE) -> bool:
    """Equal sums, and everything that is read off them."""
    pairs = [
        (a.predict(x), b.predict(x)),
        (a.log_weights, b.log_weights),
        (a.log_evidence, b.log_evidence),
        (a.predictive(x).variance, b.predictive(x).variance),
    ]
    return same_sums(a, b) and all(torch.equal(ours, theirs) for ours, theirs in pairs)


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x
