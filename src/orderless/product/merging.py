"""The merged networks: the mean of the product of all tasks' posteriors, layer by layer.

    W = (p_0 I + sum_t G_t)^-1 (p_0 A + sum_t G_t W_t)

The anchor A of the prior is W_0, or W_0 + sum_t (W_t - W_0): task arithmetic (Ilharco et al. 2023,
arXiv:2212.04089) where the data says little. Without the prior this is RegMean (Jin et al. 2023,
arXiv:2212.09849).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..ensemble.layers import Layer
from ..ensemble.pairs import Data
from .sums import TaskSums, merged_layers, running_statistics, task_sums

SHARES = {"start": 1e-3, "sum": 0.1}  # p_0 over the mean diagonal of sum_t G_t, by the anchor


@dataclass(frozen=True)
class Prior:
    """N(A, I / p_0) for every layer; p_0 is a share of the mean diagonal of sum_t G_t if None."""

    precision: float | None
    anchor: str

    def __post_init__(self) -> None:
        if self.precision is not None and not 0 < self.precision < float("inf"):
            raise ValueError(f"prior_precision must be positive, got {self.precision}")
        if self.anchor not in SHARES:
            raise ValueError(f"anchor must be 'start' or 'sum', got {self.anchor!r}")


def merge(
    start: nn.Module,
    networks: Iterable[tuple[nn.Module, Data]],
    prior_precision: float | None = None,
    anchor: str = "start",
) -> nn.Module:
    """Merge networks that were trained from one start, each on its own data, into one.

    What `PosteriorProduct` computes from tasks, to the bit, for networks that exist already. The
    order of the networks has no effect.

    Args:
        start: the network from which all were trained. Parameters that do not require a gradient
            here are not merged, and must not differ.
        networks: pairs of a network and its data: two tensors (x, y), or batches of such pairs.
            Labels are not used.
        prior_precision: p_0; None: a share of the mean diagonal of sum_t G_t, layer by layer: 1e-3
            with the anchor "start", 0.1 with "sum".
        anchor: to what the prior pulls: `"start"`, or `"sum"`, the start plus the changes of all
            networks. "sum" is better for networks whose data is alike; see `PosteriorProduct`.

    >>> start = torch.nn.Linear(2, 1)
    >>> data = torch.randn(8, 2), torch.zeros(8)
    >>> ol.merge(start, [(torch.nn.Linear(2, 1), data), (torch.nn.Linear(2, 1), data)])
    Linear(in_features=2, out_features=1, bias=True)
    """
    prior = Prior(prior_precision, anchor)
    _check_network(start)
    particles = Ensemble.from_modules([start])
    layers = merged_layers(particles)
    first = {name: tensor.detach().clone() for name, tensor in particles.tensors().items()}
    trained = {name for layer in layers.values() for name, _ in layer.parts}
    alive = torch.ones(1, dtype=torch.bool, device=particles.device)
    sums = TaskSums.nothing(particles)
    for number, (network, data) in enumerate(networks):
        _check_network(network)
        particles.load_particle(0, network)
        for name, parameter in particles.named_parameters():
            if name not in trained and not torch.equal(parameter, first[name]):
                raise ValueError(
                    f"{name!r} does not require a gradient in start, but network {number} has "
                    "other values there: make it trainable in start, or copy it from there"
                )
        sums = sums.plus(task_sums(particles, layers, first, data, None, alive))
    if not sums.tasks:
        raise ValueError("merge needs at least one network, got none")
    load_tensors(particles, first)
    load_merged(particles, layers, sums, prior)
    return particles[0]


def _check_network(network: object) -> None:
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"merge takes networks, got {type(network).__name__}: load a state dict into one with "
            "network.load_state_dict"
        )


@torch.no_grad()
def load_tensors(particles: Ensemble, values: dict[str, Tensor]) -> None:
    """Write parameters and buffers into particles."""
    tensors = particles.tensors()
    for name, value in values.items():
        tensors[name].copy_(value)
        tensors[name].grad = None


def load_merged(
    particles: Ensemble, layers: dict[str, Layer], sums: TaskSums, prior: Prior
) -> None:
    """Write the merged parameters and buffers into particles, which are at the start."""
    start = particles.tensors()
    merged: dict[str, Tensor] = {}
    for layer in dict.fromkeys(layers.values()):
        matrix = layer.matrix(start).double()
        cross = sums.value("cross", layer.name)
        if prior.anchor == "sum":
            matrix = matrix + sums.value("change", layer.name)
        for columns, gram in sums.grams(layer):
            for i in range(particles.n):  # one at a time, for memory
                anchor = matrix[i][..., columns]
                mean = posterior_mean(gram[i], cross[i][..., columns], anchor, prior, layer.name)
                matrix[i][..., columns] = mean
        merged |= layer.parameters(matrix, start)
    for place, (mean_name, variance_name) in running_statistics(particles).items():
        mean, square = (sums.value("statistics", place) / sums.value("samples")).unbind(1)
        merged[mean_name] = mean
        merged[variance_name] = (square - mean.square()).clamp(min=0.0)
    load_tensors(particles, merged)


def posterior_mean(gram: Tensor, cross: Tensor, anchor: Tensor, prior: Prior, name: str) -> Tensor:
    """(p_0 I + sum G)^-1 (p_0 A + sum G W) `[g, d, K]` of a layer.

    `gram` `[g, d, d]`, `cross` and `anchor` `[g, d, K]`.
    """
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    if not diagonal.any():  # no data
        return anchor
    p_0 = prior.precision
    if p_0 is None:
        p_0 = SHARES[prior.anchor] * float(diagonal.mean())
    precision = gram + p_0 * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(precision)
    pivot = factor.diagonal(dim1=-2, dim2=-1).square().amin()
    rounding = torch.finfo(gram.dtype).eps * gram.shape[-1] * diagonal.amax()
    if failed.any() or pivot <= rounding:
        raise ValueError(
            f"the sums of {name!r} cannot be inverted with prior_precision={prior.precision}: use "
            f"a larger one, or None for {SHARES[prior.anchor]:g} of their mean diagonal"
        )
    return torch.cholesky_solve(p_0 * anchor + cross, factor)
