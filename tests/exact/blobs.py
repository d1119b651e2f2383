"""Small data and filters for the tests of the exact filter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import orderless as ol
from orderless.exact import ExactHead
from orderless.features import RandomReLU

FIVE_TASKS = range(5)


def blobs(count: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ten classes in 12 dimensions, overlapping."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 12, generator=torch.Generator().manual_seed(99))
    y = torch.arange(count) % 10
    return centres[y] + 0.7 * torch.randn(count, 12, generator=generator), y


PROBE = blobs(20, seed=1)[0]


def ensemble(n: int = 3, width: int = 40, seed: int = 0) -> ol.Ensemble:
    return ol.Ensemble(lambda: RandomReLU(12, width, bias_scale=0.3), n, seed=seed)


def fed(x: Tensor, y: Tensor, weight: Any = None, **options: Any) -> ExactHead:
    rb = ExactHead(ensemble(), **options)
    rb.update(x, y, sample_weight=weight)
    return rb


def in_order(order: tuple[int, ...], **options: object) -> ExactHead:
    x, y = blobs()
    rb = ExactHead(ensemble(), classes=2, **options)  # type: ignore[arg-type]
    for task in order:
        mine = y // 2 == task
        rb.update(x[mine], y[mine] % 2, task=task)
    return rb


def same_bits(a: ExactHead, b: ExactHead, x: Tensor) -> bool:
    return (
        torch.equal(a.predict(x), b.predict(x))
        and torch.equal(a.log_weights, b.log_weights)
        and torch.equal(a.log_evidence, b.log_evidence)
        and torch.equal(a.predictive(x).variance, b.predictive(x).variance)
        and same_state(a.state_dict(), b.state_dict())
    )


def same_state(a: Any, b: Any) -> bool:
    """Equal to the bit, dtypes included."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def regression(n: int = 60, width: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs and targets that lie on the grid already, so that nothing is rounded away."""
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(n, width, generator=generator, dtype=torch.float64) * 256).round() / 256
    truth = torch.randn(width, generator=generator, dtype=torch.float64)
    y = x @ truth + 0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x.clamp(-8, 8), (y * 256).round() / 256
