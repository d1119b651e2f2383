"""What is read off the sums: the posterior of every map's head, and the temperature of all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..filters.weights import normalize
from .grid import GridFeatures
from .held_out import HeldOut, by_label, label_table
from .intake import check_tensor
from .ridge import SHARPNESS, HeadPosterior, NormalEquations, solve_head
from .sums import HeadSums, tasks_and_labels

if TYPE_CHECKING:
    from .head import ExactHead

Prior = str | Sequence[float] | None


@dataclass(frozen=True)
class Solution:
    """N posteriors, their evidence, weights of the maps, and the factor on all maps' logits."""

    heads: list[HeadPosterior]
    evidence: Tensor  # [N], log p(data | map i), float64
    log_weights: Tensor  # [N]
    sharpness: float = SHARPNESS  # on f / sqrt(variance) of all maps, chosen for their mixture
    left_out: Tensor | None = (
        None  # [S], whether the head without a kept sample predicts it rightly
    )


def solve(head: ExactHead, sums: HeadSums | None) -> Solution:
    """Solve every map's head, then choose the sharpness of their mixture. Without data there are no
    heads, and the maps are alike."""
    n = head.particles.n
    evidence = torch.zeros(n, dtype=torch.float64, device=head.grid.device)
    uniform = torch.full_like(evidence, -math.log(n))
    if sums is None:
        return Solution([], evidence, uniform)
    ratio = ratios_of(head.class_prior, sums)
    held = held_out_of(sums, head.across_tasks, ratio)
    heads = [_solve_map(head, sums, held, ratio, number) for number in range(n)]
    evidence = evidence.new_tensor([posterior.log_evidence for posterior in heads])
    log_weights = normalize(evidence)[0] if head.weighting == "evidence" else uniform
    if held is None:
        return Solution(heads, evidence, log_weights)
    scores = torch.stack([posterior.held_out for posterior in heads])  # type: ignore[misc]
    sharpness = held.sharpness(scores, log_weights)
    logits = by_label(sharpness * scores, held.table, held.across)
    shares = logits.softmax(2) * log_weights.exp().view(-1, 1, 1)
    return Solution(heads, evidence, log_weights, sharpness, shares.sum(0).argmax(1) == held.labels)


def read(solution: Solution, grid: GridFeatures, x: Tensor) -> tuple[Tensor, Tensor]:
    """Every map's means `[N, B, K]` and variances `[N, B]`.

    Blocks have one size, so that no bit of a sample's result depends on other samples.
    """
    check_tensor("x", x)
    if not solution.heads:
        raise ValueError("nothing to predict yet: update with some data first")
    size = 512 if grid.device.type == "cuda" else 128
    means = []
    variances = []
    for rows in x.split(grid.portion):
        for part in grid(rows).split(size, 1):
            count = part.shape[1]
            features = pad(part.double(), (0, 0, 0, size - count))
            pairs = list(zip(solution.heads, features, strict=True))
            means.append(torch.stack([head.outputs(own)[:count] for head, own in pairs]))
            variances.append(torch.stack([head.variance(own)[:count] for head, own in pairs]))
    return torch.cat(means, 1), torch.cat(variances, 1)


def _solve_map(
    head: ExactHead, sums: HeadSums, held: HeldOut | None, ratio: Tensor | None, number: int
) -> HeadPosterior:
    """The posterior of one map's head, under the assumed shares of the classes.

    The sums determine the mean m_c / n_c of every class, and the pooled scatter around these means.
    Let samples of class c count r_c = n pi_c / n_c times. That changes the means' part of the Gram
    matrix but not the pooled scatter:

        G' = G + sum_c (r_c - 1) / n_c m_c m_c^T,    m'_c = r_c m_c,    n'_c = r_c n_c

    This equals weighting the samples if all classes have the same scatter.
    """
    gram, moments = sums.of_map(number)
    squares = sums.counts
    if ratio is not None:
        gram = gram + moments.mT @ (((ratio - 1.0) / squares).unsqueeze(1) * moments)
        moments = ratio.unsqueeze(1) * moments
        squares = ratio * squares
    equations = NormalEquations.of(
        gram,
        moments,
        squares,
        classes=sums.basis.classes,
        standardize=head.standardize,
        constant=sums.basis.feature_limit,
    )
    if held is not None:
        features = sums.counted["kept"].features[number, : len(held.labels)].double()
        rows = features * sums.basis.feature_limit - equations.mean
        equations = replace(equations, held=held, rows=rows)
    fixed = None
    if head.prior_precision is not None and head.noise_variance is not None:
        fixed = head.prior_precision, head.noise_variance
    return solve_head(equations, fixed)


def held_out_of(sums: HeadSums, across: str, ratio: Tensor | None = None) -> HeldOut | None:
    """As many kept samples as cost about as much as a factorisation."""
    kept = sums.counted.get("kept")
    if kept is None or not len(kept.keys) or len(sums.columns) < 2:
        return None
    names, labels = tasks_and_labels(sums.columns)[1].unique(return_inverse=True)
    most = min(2048, max(256, sums.features // 3), max(16, 2**18 // len(labels)))
    columns = torch.searchsorted(sums.columns, kept.keys[:most, 1].contiguous())
    weights = kept.weights[:most]
    if ratio is not None:
        weights = weights * ratio[columns]
    return HeldOut(columns, weights, label_table(labels, len(names)), labels[columns], across)


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def checked_prior(prior: Any) -> Prior:
    """The shares of a class prior as a list of their own. Raise if they are none."""
    if prior is None or (isinstance(prior, str) and prior == "uniform"):
        return prior
    if isinstance(prior, str | Mapping) or not hasattr(prior, "__len__"):
        raise ValueError(
            "class_prior must be 'uniform', None, or a list of shares in the order of the "
            f"labels, got {prior!r}"
        )
    shares = [float(share) for share in prior]
    if not all(0 < share < float("inf") for share in shares):
        raise ValueError(f"class_prior must hold a positive share per label, got {shares}")
    return shares


def ratios_of(prior: Prior, sums: HeadSums) -> Tensor | None:
    """r_c of a class prior per column `[K]`; a label's share is divided evenly among its tasks."""
    if prior is None:
        return None
    labels = tasks_and_labels(sums.columns)[1]
    shares = [1.0] * int(labels.max() + 1) if isinstance(prior, str) else prior
    if int(labels.max()) >= len(shares):
        raise ValueError(
            f"class_prior has {len(shares)} shares, but there is a label {int(labels.max())}"
        )
    wanted = torch.tensor(shares).to(sums.counts)[labels] / labels.bincount()[labels]
    return wanted / wanted.sum() * sums.counts.sum() / sums.counts
