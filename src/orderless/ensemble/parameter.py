"""A parameter that belongs to N networks at once."""

from __future__ import annotations

from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn


class ParticleParameter(nn.Parameter):
    """One tensor of every particle, stacked: shape `[N, ...]`.

    The type tells a per-particle reduction (clipping, TRAC) that axis 0 counts networks.
    `nn.Parameter.__deepcopy__` and pickle keep the type.

    >>> import orderless as ol
    >>> particles = ol.Ensemble(lambda: nn.Linear(3, 2), n=5)
    >>> particles.get_parameter("weight").n_particles
    5
    """

    descent: Any = None  # set during a backward pass that takes the step itself

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return ParticleParameter, (self.data, self.requires_grad)

    @property
    def n_particles(self) -> int:
        return self.shape[0]


def per_particle_view(values: Tensor, like: Tensor) -> Tensor:
    """Shape `[N]` values so that they broadcast against a `[N, ...]` tensor."""
    return values.view(-1, *[1] * (like.dim() - 1))


def squared_norms(tensors: list[Tensor]) -> Tensor:
    """Each particle's squared norm over several `[N, ...]` tensors: `[N]`."""
    flat = [tensor.reshape(len(tensor), -1) for tensor in tensors]
    return torch.stack([torch.linalg.vector_norm(t, dim=1) for t in flat]).square().sum(0)


def inner_products(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Each particle's inner product over pairs of `[N, ...]` tensors: `[N]`, in float64."""
    products = [a.double() * b.double() for a, b in zip(left, right, strict=True)]
    return torch.stack([product.reshape(len(product), -1).sum(1) for product in products]).sum(0)
