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
from .grid import GridFeatures, in_plain_mode
from .held_out import HeldOut
from .ridge import SHARPNESS, HeadPosterior, NormalEquations, solve_head
from .sums import HeadSums
from .targets import (
    Column,
    by_label,
    check_tensor,
    column_pairs,
    label_table,
    tasks_and_labels,
)

if TYPE_CHECKING:
    from .head import ExactHead

Prior = str | Sequence[float] | None


@dataclass(frozen=True)
class Solution:
    """N posteriors, their evidence, weights of the maps, and the factor on all maps' logits."""

    heads: list[HeadPosterior]
    evidence: Tensor  # [N], log p(data | map i), float64
    log_weights: Tensor  # [N]
    sharpness: float  # on f / sqrt(variance) of every map, chosen for the mixture of all


def solve(head: ExactHead, sums: HeadSums) -> Solution:
    """Solve every map's head, then choose the sharpness of their mixture."""
    held = held_out_of(head, sums)
    heads = [_solve_map(head, sums, held, number) for number in range(head.particles.n)]
    evidence = sums.gram.low.new_tensor([each.log_evidence for each in heads])
    log_weights = maps_weights(head.weighting, evidence)
    scores = [each.held_out for each in heads if each.held_out is not None]
    sharpness = SHARPNESS
    if held is not None and scores:
        sharpness = held.sharpness(torch.stack(scores), log_weights)
    return Solution(heads, evidence, log_weights, sharpness)


def read(solution: Solution | None, grid: GridFeatures, x: Tensor) -> tuple[Tensor, Tensor]:
    """Every map's means `[N, B, K]` and variances `[N, B]`.

    Blocks have one size, so that no bit of a sample's result depends on other samples.
    """
    if solution is None:
        raise ValueError("nothing to predict yet: update with some data first")
    check_tensor("x", x)
    size = 512 if grid.device.type == "cuda" else 128
    means = []
    variances = []
    for (rows,) in grid.blocks(x):
        for part in grid(rows).split(size, 1):
            count = part.shape[1]
            features = pad(part.double(), (0, 0, 0, size - count))
            pairs = list(zip(solution.heads, features, strict=True))
            means.append(torch.stack([head.outputs(own)[:count] for head, own in pairs]))
            variances.append(torch.stack([head.variance(own)[:count] for head, own in pairs]))
    return torch.cat(means, 1), torch.cat(variances, 1)


def maps_weights(weighting: str, evidence: Tensor) -> Tensor:
    """Normalised log-weights of maps `[N]`: w_i ∝ p(data | map i), or all equal."""
    if weighting == "evidence":
        return normalize(evidence)[0]
    return torch.full_like(evidence, -math.log(len(evidence)))


def _solve_map(head: ExactHead, sums: HeadSums, held: HeldOut | None, number: int) -> HeadPosterior:
    """The posterior of one map's head, under the assumed shares of the classes.

    The sums determine the mean m_c / n_c of every class, and the pooled scatter around these means.
    Let samples of class c count r_c = n pi_c / n_c times. That changes the means' part of the Gram
    matrix but not the pooled scatter:

        G' = G + sum_c (r_c - 1) / n_c m_c m_c^T,    m'_c = r_c m_c,    n'_c = r_c n_c

    This equals weighting the samples if all classes have the same scatter.
    """
    gram, moments = sums.of_map(number)
    squares = sums.squares.value()
    if head.class_prior is not None:
        ratio = ratios_of(head.class_prior, column_pairs(sums.columns), squares)
        gram = gram + moments.mT @ (((ratio - 1.0) / squares).unsqueeze(1) * moments)
        moments = ratio.unsqueeze(1) * moments
        squares = ratio * squares
    equations = NormalEquations.of(
        gram,
        moments,
        squares,
        classes=sums.units.classes,
        standardize=head.standardize,
        constant=sums.units.feature_limit,
    )
    if held is not None and sums.kept is not None:
        features = sums.kept.features[number, : len(held.labels)].double()
        rows = features * sums.units.feature_limit - equations.mean
        equations = replace(equations, held=held, rows=rows)
    return solve_head(equations, head.prior_precision, head.noise_variance)


def held_out_of(head: ExactHead, sums: HeadSums) -> HeldOut | None:
    """As many kept samples as cost about as much as a factorisation."""
    kept = sums.kept
    if kept is None or not len(kept.keys) or len(sums.columns) < 2:
        return None
    names, labels = tasks_and_labels(sums.columns)[1].unique(return_inverse=True)
    most = min(2048, max(256, sums.features // 3), max(16, 2**18 // len(labels)))
    columns = torch.searchsorted(sums.columns, kept.columns[:most])
    weights = kept.weights[:most]
    if head.class_prior is not None:
        counts = sums.squares.value()
        ratio = ratios_of(head.class_prior, column_pairs(sums.columns), counts)
        weights = weights * ratio[columns]
    table = label_table(labels, len(names))
    return HeldOut(columns, weights, table, labels[columns], head.across_tasks)


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def check_prior(prior: Any) -> Prior:
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


def ratios_of(prior: str | Sequence[float], columns: list[Column], counts: Tensor) -> Tensor:
    """r_c of a class prior per column `[K]`; a label's share is divided evenly among its tasks."""
    labels = [label for _, label in columns]
    given = [1.0] * (max(labels) + 1) if isinstance(prior, str) else prior
    if max(labels) >= len(given):
        raise ValueError(f"class_prior has {len(given)} shares, but there is a label {max(labels)}")
    tasks = torch.tensor(labels).bincount()
    shares = torch.tensor(given, dtype=torch.float64)[labels] / tasks[labels]
    return (shares / shares.sum()).to(counts) * counts.sum() / counts


@in_plain_mode
def left_out(head: ExactHead) -> Tensor:
    """Whether each of some kept samples is predicted rightly by the head without it `[S]`."""
    solution = head.solution()
    held = None if head.sums is None else held_out_of(head, head.sums)
    if solution is None or held is None:
        return torch.zeros(0, dtype=torch.bool)
    scores = torch.stack([part.held_out for part in solution.heads if part.held_out is not None])
    logits = by_label(solution.sharpness * scores, held.table, held.across)
    shares = logits.softmax(2) * solution.log_weights.exp().view(-1, 1, 1)
    return shares.sum(0).argmax(1) == held.labels
