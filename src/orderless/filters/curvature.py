"""Second derivatives of the losses of N networks at once.

A closure returns losses L `[N]`, perhaps with the outputs f `[N, B, C]` they were computed from.

- From losses alone: the Hessian itself, by differentiating twice. Its diagonal by random signs v,
  v * (H v) (Hutchinson; exact if H is diagonal), with negative entries set to 0.
- With outputs: the generalised Gauss-Newton matrix J^T Lambda J, J = df/dx, Lambda = d2L/df2, which
  is positive semi-definite wherever the loss is convex in the outputs. Lambda is one C x C block
  per sample, found by C products; S S^T = Lambda. The full matrix takes B * C backward passes. Its
  diagonal is estimated by (J^T S e)^2 with random signs e: one backward pass per probe, unbiased,
  never negative.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import count, product
from typing import Any

import torch
from torch import Tensor, nn

from ..ensemble import random

_STREAM = 1 << 22  # a separate random stream, distinct from those of dropout and resampling


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """`[N, d]` in float64 from a list of `[N, ...]`."""
    return torch.cat([t.detach().reshape(len(t), -1).double() for t in tensors], dim=1)


def derivatives(
    losses: Tensor, parameters: list[nn.Parameter], create_graph: bool = False
) -> list[Tensor]:
    """Gradients of every particle's loss, zeros for parameters that it does not depend on."""
    if not losses.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    graph: Any = {"create_graph": create_graph, "retain_graph": True}
    return list(torch.autograd.grad(losses.sum(), parameters, materialize_grads=True, **graph))


def signs(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Random +-1: `[N, *shape]`."""
    return torch.where(random.uniform(keys, shape) < 0.5, -1.0, 1.0)


Keys = Iterator[Tensor]


def probe_keys(seed: int, step: Tensor, indices: Tensor) -> Keys:
    """Keys for the random signs of one step: they depend on (seed, step, particle) alone."""
    return (random.particle_keys(seed, step, indices, stream) for stream in count(_STREAM + 1))


def hessian(gradients: list[Tensor], parameters: list[nn.Parameter]) -> Tensor:
    """The full matrix `[N, d, d]`, one row of all particles per backward pass."""
    flat = torch.cat([g.reshape(len(g), -1) for g in gradients], dim=1)
    rows = [flatten(derivatives(flat[:, row], parameters)) for row in range(flat.shape[1])]
    matrix = torch.stack(rows, dim=1)
    return (matrix + matrix.mT) / 2


def hessian_diagonal(
    gradients: list[Tensor], parameters: list[nn.Parameter], keys: Keys, probes: int
) -> Tensor:
    """Hutchinson's estimate of the diagonal `[N, d]`, at least 0."""

    def estimate() -> Tensor:
        directions = [signs(next(keys), tuple(p.shape[1:])).to(p.dtype) for p in parameters]
        products = [(g * v).flatten(1).sum(1) for g, v in zip(gradients, directions, strict=True)]
        curved = derivatives(torch.stack(products).sum(0), parameters)
        return flatten(directions) * flatten(curved)

    return (reduce(Tensor.add_, (estimate() for _ in range(probes))) / probes).clamp(min=0.0)


def output_curvature_root(losses: Tensor, outputs: Tensor) -> Tensor:
    """S `[N, B, C, C]` with S S^T = d2L/df2, one block per sample; outputs `[N, B, C]`."""
    (slope,) = torch.autograd.grad(losses.sum(), outputs, create_graph=True)
    columns = []
    for column in range(outputs.shape[-1]):
        if slope.requires_grad:
            (curved,) = torch.autograd.grad(
                slope[..., column].sum(), outputs, retain_graph=True, materialize_grads=True
            )
        else:
            curved = torch.zeros_like(outputs)
        columns.append(curved.detach().double())
    blocks = torch.stack(columns, dim=-1)
    blocks = torch.where(blocks.isfinite(), blocks, 0.0)  # the particle dies because of its loss
    values, vectors = torch.linalg.eigh((blocks + blocks.mT) / 2)
    return vectors * values.clamp(min=0.0).sqrt().unsqueeze(-2)


def _pulled_back(outputs: Tensor, directions: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """J^T u for every particle: `[N, d]`."""
    aligned = (outputs * directions.to(outputs.dtype)).flatten(1).sum(1)
    return flatten(derivatives(aligned, parameters))


def gauss_newton(losses: Tensor, outputs: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """The full generalised Gauss-Newton matrix `[N, d, d]`, exactly."""
    root = output_curvature_root(losses, outputs)

    def outer(sample: int, column: int) -> Tensor:
        directions = torch.zeros_like(root[..., 0])
        directions[:, sample] = root[:, sample, :, column]
        row = _pulled_back(outputs, directions, parameters)
        return row.unsqueeze(2) * row.unsqueeze(1)

    places = product(range(root.shape[1]), range(root.shape[-1]))
    return reduce(Tensor.add_, (outer(*place) for place in places))


def gauss_newton_diagonal(
    losses: Tensor, outputs: Tensor, parameters: list[nn.Parameter], keys: Keys, probes: int
) -> Tensor:
    """An unbiased, non-negative estimate of the diagonal `[N, d]`."""
    root = output_curvature_root(losses, outputs)

    def estimate() -> Tensor:
        drawn = signs(next(keys), tuple(root.shape[1:3])).double()
        directions = (root @ drawn.unsqueeze(-1)).squeeze(-1)
        return _pulled_back(outputs, directions, parameters).square()

    return reduce(Tensor.add_, (estimate() for _ in range(probes))) / probes
