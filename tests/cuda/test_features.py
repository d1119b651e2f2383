"""Maps that call themselves exact: a GPU's sums have the bits of the CPU's, in any batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import orderless as ol
from orderless.features import DeadLeaves, RandomConvolution, RandomReLU

IMAGE, SAMPLES = (3, 20, 20), 300
MAPS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (lambda: RandomReLU(784, 200), (784,)),
    "relu in float64": (lambda: RandomReLU(5000, 40), (5000,)),
    "convolution": (lambda: RandomConvolution(3, 20, 32), IMAGE),
    "leaves": (lambda: DeadLeaves(3, 20, 32), IMAGE),
}


def sums(name: str, device: str, batch: int) -> list[Tensor]:
    """All sums of a filter that has learned, and unlearned some of it again."""
    make, shape = MAPS[name]
    x = torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(1)).to(device)
    y = torch.arange(SAMPLES, device=device) % 3
    rb = ol.ExactHead(ol.Ensemble(make, 2, seed=0, device=device), classes=3)
    for rows in torch.arange(SAMPLES, device=device).split(batch):
        rb.update(x[rows], y[rows])
    rb.forget(x[:20], y[:20])
    leaves = tree_leaves(rb.state_dict()["sums"])
    return [leaf.cpu() for leaf in leaves if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("name", MAPS)
def test_sums_on_the_gpu_are_those_on_the_cpu(name: str) -> None:
    expected = sums(name, "cpu", SAMPLES)
    assert len(expected) > 3 and any(leaf.count_nonzero() for leaf in expected)
    for batch in (SAMPLES, 37):
        for ours, theirs in zip(sums(name, "cuda", batch), expected, strict=True):
            assert torch.equal(ours, theirs)
