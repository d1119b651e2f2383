r"""Discrepancies D(p, q) between weighted particle sets; each satisfies the triangle inequality.

The proofs add discrepancies along chains of sets, so D must be symmetric, zero for p = q, and
satisfy D(p, q) <= D(p, r) + D(r, q). Wasserstein-1 and the root energy distance do; the *square* of
the latter, often called energy distance, does not. The two sets may differ in size.

For a small displacement h of the particles, Wasserstein-1 is linear in h, and the root energy
distance is proportional to its root. (The energy distance between two single points is 2h, its root
sqrt(2h).) Differences of sqrt(1e-16) in a root energy distance in several dimensions can therefore
be rounding errors.
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
    # The matrix-product shortcut is off by 1e-8 for points that nearly coincide.
    distances = torch.cdist(support, support, compute_mode="donot_use_mm_for_euclid_dist")
    return float((-masses @ distances @ masses).clamp(min=0).sqrt())


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
    support, where = torch.unique(torch.cat([x, y]), dim=0, return_inverse=True)
    return support, torch.zeros(len(support), dtype=x.dtype).index_add(0, where, torch.cat([w, -v]))
