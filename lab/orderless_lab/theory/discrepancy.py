r"""Discrepancies D(p, q) between weighted particle sets; each satisfies the triangle inequality.

The proofs add discrepancies along chains of sets, so D must be symmetric, zero for p = q, and
satisfy D(p, q) <= D(p, r) + D(r, q). Root energy distance, root MMD and Wasserstein-1 do; the
*squares* of the first two, often called energy distance and MMD, do not. The two sets may differ in
size.

For a small displacement h of the particles, Wasserstein-1 and the MMD of a smooth kernel are linear
in h, and the root energy distance is proportional to its root. (The energy distance between two
single points is 2h, its root sqrt(2h).) Differences of sqrt(1e-16) in a root energy distance or MMD
in several dimensions can therefore be rounding errors.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .sets import WeightedSet, checked

Discrepancy = Callable[[WeightedSet, WeightedSet], float]


def root_energy_distance(p: WeightedSet, q: WeightedSet) -> float:
    r"""$D^2 = 2\,E|X - Y| - E|X - X'| - E|Y - Y'|$ with X, X' ~ p and Y, Y' ~ q; returns D.

    In one dimension $D^2 = 2 \int (F_p - F_q)^2$, which has no cancellation.
    """
    support, masses = _difference(p, q)
    if support.shape[1] == 1:
        gaps = masses.cumsum(0)[:-1]  # F_p - F_q between points
        widths = support[:, 0].diff()
        return float((2 * gaps.square() @ widths).sqrt())
    return float((-masses @ _distances(support, support) @ masses).clamp(min=0).sqrt())


def root_mmd(p: WeightedSet, q: WeightedSet, length_scale: float = 1.0) -> float:
    r"""$D^2 = \sum_{ij} \mu_i \mu_j k(z_i, z_j)$ with $\mu = p - q$ (the V-statistic); returns D.

    The kernel is Gaussian, $k(x, y) = e^{-|x - y|^2 / 2 \ell^2}$ with the length scale $\ell$.
    """
    if not length_scale > 0:
        raise ValueError(f"length_scale must be positive, got {length_scale}")
    support, masses = _difference(p, q)
    kernel = (-_distances(support, support).square() / (2 * length_scale**2)).exp()
    return float((masses @ kernel @ masses).clamp(min=0).sqrt())


def wasserstein_1(p: WeightedSet, q: WeightedSet) -> float:
    r"""$D = \int |F_p(x) - F_q(x)| dx$, exact, for sets in one dimension."""
    support, masses = _difference(p, q)
    if support.shape[1] != 1:
        raise ValueError(f"wasserstein_1 is exact in one dimension only, got {support.shape[1]}")
    gaps = masses.cumsum(0)[:-1]
    widths = support[:, 0].diff()
    return float(gaps.abs() @ widths)


def _difference(p: WeightedSet, q: WeightedSet) -> tuple[Tensor, Tensor]:
    """p - q as one signed set: distinct points `[K, d]`, sorted, and masses `[K]`.

    Points in both sets are merged, so that equal sets have masses of exactly zero: the root of a
    small remainder would be large.
    """
    x, w = checked(p)
    y, v = checked(q)
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"sets of different dimensions, {x.shape[1]} and {y.shape[1]}")
    support, where = torch.unique(torch.cat([x, y]), dim=0, return_inverse=True)
    return support, torch.zeros(len(support), dtype=x.dtype).index_add(0, where, torch.cat([w, -v]))


def _distances(x: Tensor, y: Tensor) -> Tensor:
    # The matrix-product shortcut is off by 1e-8 for points that nearly coincide.
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
