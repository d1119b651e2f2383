"""Four ways to draw N particles from N weighted ones.

`scheme(weights, uniforms) -> indices`, with weights `[N]` that sum to one and uniforms `[N]` in
(0, 1). All are unbiased: particle i is drawn N w_i times on average. The variance differs.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def _inverse_cdf(weights: Tensor, points: Tensor) -> Tensor:
    """For each point in (0, 1), the particle whose share of the unit interval contains it."""
    cumulative = weights.cumsum(0)
    # below 1, where float32 rounds some uniforms to: nothing with a weight lies beyond
    points = points.clamp(max=1.0 - torch.finfo(points.dtype).eps / 2)
    return torch.searchsorted(cumulative / cumulative[-1], points, right=True)


def multinomial(weights: Tensor, uniforms: Tensor) -> Tensor:
    """N independent draws: the textbook scheme, with the largest variance."""
    return _inverse_cdf(weights, uniforms.to(weights))


def stratified(weights: Tensor, uniforms: Tensor) -> Tensor:
    """One draw in each of N equal strata of the unit interval."""
    n = len(weights)
    strata = torch.arange(n, device=weights.device)
    return _inverse_cdf(weights, (strata + uniforms.to(weights)) / n)


def systematic(weights: Tensor, uniforms: Tensor) -> Tensor:
    """One draw, repeated at distance 1/N: counts are the floor or the ceiling of N w_i."""
    return stratified(weights, uniforms[:1].expand(len(weights)))


def residual(weights: Tensor, uniforms: Tensor) -> Tensor:
    """floor(N w_i) certain copies; the rest are independent draws from the remaining weights."""
    n = len(weights)
    expected = n * weights
    certain = (expected * (1 + 1e-12)).floor()  # a share of 1 may be rounded to just below it
    slots = torch.arange(n, device=weights.device)
    copied = torch.searchsorted(certain.cumsum(0), slots.to(weights), right=True).clamp_(max=n - 1)
    leftover = (expected - certain).clamp(min=0.0)
    total = leftover.sum()
    share = torch.where(total > 0, leftover / total, weights)
    return torch.where(slots < certain.sum(), copied, multinomial(share, uniforms))


SCHEMES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    scheme.__name__: scheme for scheme in (systematic, stratified, multinomial, residual)
}
