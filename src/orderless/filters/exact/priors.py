"""Sums for other shares of the classes: a class prior that is set on read.

The sums determine the mean m_c / n_c of every class, and the pooled scatter around these means. Let
samples of class c count r_c = n pi_c / n_c times. That changes the means' part of the Gram matrix
but not the pooled scatter:

    G' = G + sum_c (r_c - 1) / n_c m_c m_c^T,    m'_c = r_c m_c,    n'_c = r_c n_c

This equals weighting the samples if all classes have the same scatter.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .targets import Column

Prior = str | Sequence[float] | None


def check_prior(prior: Prior) -> None:
    """Raise `ValueError` if a prior is not None, "uniform" or a positive share per label."""
    if isinstance(prior, str | Mapping):
        if prior != "uniform":
            raise ValueError(
                "class_prior must be 'uniform', None, or a list of shares in the order of the "
                f"labels, got {prior!r}"
            )
    elif prior is not None and not all(0 < share < float("inf") for share in prior):
        raise ValueError(f"class_prior must hold a positive share per label, got {list(prior)}")


def ratios_of(prior: Prior, columns: list[Column], counts: Tensor) -> Tensor:
    """r_c per column `[K]`; the share of a label is divided evenly among its tasks."""
    assert prior is not None
    labels = [label for _, label in columns]
    uniform = isinstance(prior, str)  # the only text that `check_prior` admits
    given = [1.0] * (max(labels) + 1) if uniform else [float(share) for share in prior]
    if max(labels) >= len(given):
        raise ValueError(f"class_prior has {len(given)} shares, but there is a label {max(labels)}")
    tasks = torch.tensor(labels).bincount()
    shares = torch.tensor(given, dtype=torch.float64)[labels] / tasks[labels]
    return (shares / shares.sum()).to(counts) * counts.sum() / counts


def reweighted(
    gram: Tensor, moments: Tensor, counts: Tensor, ratio: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """gram `[M+1, M+1]`, moments `[K, M+1]` and counts `[K]` with these ratios `[K]`."""
    change = ((ratio - 1.0) / counts).unsqueeze(1) * moments
    return gram + moments.mT @ change, ratio.unsqueeze(1) * moments, ratio * counts
