"""The mean of the product, layer by layer: what reading the filter computes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...particles import Ensemble
from .moments import running_statistics
from .statistics import LayerSums, TaskSums


def posterior_mean(
    gram: Tensor, cross: Tensor, start: Tensor, prior_precision: float | None
) -> tuple[Tensor, Tensor]:
    """W = (p_0 I + sum G)^-1 (p_0 W_0 + sum G W) `[g, d, K]`, and what it adds to log Z.

    `gram` `[g, d, d]`, `cross` and `start` `[g, d, K]`. To log Z it adds the terms of `product.py`
    that need W: those with L_t and tr W_t^T G_t W_t are sums over tasks.
    """
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    if not diagonal.any():  # no task has said anything
        return start, gram.new_zeros(())
    p_0 = 1e-3 * diagonal.mean() if prior_precision is None else gram.new_tensor(prior_precision)
    precision = gram.clone()
    precision.diagonal(dim1=-2, dim2=-1).add_(p_0)
    factor = torch.linalg.cholesky(precision)
    target = p_0 * start + cross
    mean = torch.cholesky_solve(target, factor)
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum()
    rows, columns = diagonal.numel(), start.shape[-1]
    log_z = 0.5 * ((mean * target).sum() - p_0 * start.square().sum())
    return mean, log_z + 0.5 * columns * (rows * p_0.log() - log_det)


def merged_layer(
    sums: LayerSums, start: Tensor, prior_precision: float | None
) -> tuple[Tensor, Tensor]:
    """W `[N, g, d, K]`, and what the layer adds to log Z `[N]`; columns with equal sums at once."""
    merged, log_z, cross = start.clone(), start.new_zeros(len(start)), sums.cross.value
    for part in dict.fromkeys(sums.parts):
        columns = [k for k, own in enumerate(sums.parts) if own == part]
        for i in range(len(start)):
            gram = sums.grams.high[part, i] + sums.grams.low[part, i]
            own_cross, own_start = cross[i][..., columns], start[i][..., columns]
            mean, gain = posterior_mean(gram, own_cross, own_start, prior_precision)
            merged[i][..., columns] = mean
            log_z[i] += gain
    return merged, log_z


def merged_statistics(
    particles: Ensemble, sums: TaskSums, start: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Running mean and variance over the values of all tasks, by a buffer's name."""
    for place, (mean_name, variance_name) in running_statistics(particles).items():
        n, total, squares = sums.statistics[place].value.unbind(1)
        mean = total / n
        variance = (squares / n - mean.square()).clamp(min=0.0)
        for name, value in ((mean_name, mean), (variance_name, variance)):
            yield name, torch.where(n > 0, value, start[name].double())
