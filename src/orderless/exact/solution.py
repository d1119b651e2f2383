"""What is read off the sums: the posterior of every map's head, and the temperature of all.

A few samples are kept besides the sums, and leave-one-out predictions for them have a closed form.

Without sample i of weight w, leverage h and target y the head's output at i would be

    f_-i = (f_i - w h y) / (1 - w h),    of variance sigma^2 (1 + h / (1 - w h)),

so the log-likelihood of a few kept samples' labels, at the best temperature, shows how good a
lambda is on new data. The mixture of all maps has one temperature. The evidence measures squared
errors instead, and prefers a lambda about ten times too large if there are many classes. It serves
as the prior, with the weight of `EVIDENCE` samples, and decides alone if none are kept.

`ExportedHead` computes the same as an ordinary module, without this library.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..filters.weights import normalize
from .grid import GridFeatures, on_grid
from .ridge import (
    DEVIATION,
    SHARPNESS,
    STEP,
    STEPS,
    HeadPosterior,
    NormalEquations,
    maximum,
    solve_head,
    vertex,
)
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
    columns: Tensor  # [K], of the heads
    sharpness: float = SHARPNESS  # on f / sqrt(variance) of all maps, chosen for their mixture
    left_out: Tensor | None = None  # [S], whether a kept sample is right without itself


class Predictive(NamedTuple):
    """Mean and variance of the mixture's prediction per head column, `[B, K]` each."""

    mean: Tensor
    variance: Tensor


def solve(head: ExactHead, sums: HeadSums | None) -> Solution:
    """Solve every map's head, then choose the sharpness of their mixture. Without data there are no
    heads, and the maps are alike."""
    n = head.particles.n
    evidence = torch.zeros(n, dtype=torch.float64, device=head.grid.device)
    log_weights = torch.full_like(evidence, -math.log(n))
    if sums is None:
        return Solution([], evidence, log_weights, evidence.new_zeros(0))
    ratio = ratios_of(head.class_prior, sums)
    fixed = None
    if head.prior_precision is not None and head.noise_variance is not None:
        fixed = head.prior_precision, head.noise_variance
    heads = []
    for number in range(n):
        equations = equations_of(sums, number, ratio)
        heads.append(solve_head(equations, fixed))
    evidence = evidence.new_tensor([posterior.log_evidence for posterior in heads])
    if head.weighting == "evidence":
        log_weights = normalize(evidence)[0]
    held = equations.held  # with the same labels and weights for every map
    if held is None:
        return Solution(heads, evidence, log_weights, sums.columns)
    scores = torch.stack([posterior.held_out for posterior in heads])  # type: ignore[misc]
    sharpness = held.sharpness(scores, log_weights)
    shares = (sharpness * scores).softmax(2) * log_weights.exp().view(-1, 1, 1)
    right = shares.sum(0).argmax(1) == held.labels
    return Solution(heads, evidence, log_weights, sums.columns, sharpness, right)


def read(solution: Solution, grid: GridFeatures, x: Tensor) -> tuple[Tensor, Tensor]:
    """Every map's means `[N, B, K]` and variances `[N, B]`.

    Blocks have one size, so that no bit of a sample's result depends on other samples.
    """
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


def equations_of(sums: HeadSums, number: int, ratio: Tensor | None) -> NormalEquations:
    """What the sums say about one map's head, under the assumed shares of the classes.

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
        constant=sums.basis.feature_limit,
    )
    kept = sums.counted.get("kept")
    if kept is None or not len(kept.keys) or len(sums.columns) < 2:
        return equations
    labels = tasks_and_labels(sums.columns)[1].unique(return_inverse=True)[1]
    # as many as cost about as much as a factorisation
    most = min(2048, max(256, sums.features // 3), max(16, 2**18 // len(labels)))
    rows = kept.features[number, :most].double() * sums.basis.feature_limit - equations.mean
    columns = torch.searchsorted(sums.columns, kept.keys[:most, 1].contiguous())
    weights = kept.weights[:most]
    if ratio is not None:
        weights = weights * ratio[columns]
    return replace(equations, held=HeldOut(rows, columns, weights, labels))


@dataclass(frozen=True)
class HeldOut:
    """S kept samples, for which leave-one-out predictions are computed."""

    rows: Tensor  # [S, M], centred features under one map
    columns: Tensor  # [S], indices of the head's K columns
    weights: Tensor  # [S], in the sums
    of_label: Tensor  # [K], the label of each column

    @property
    def labels(self) -> Tensor:
        return self.of_label[self.columns]

    def scores(self, outputs: Tensor, leverage: Tensor, noise: Tensor) -> Tensor:
        """f_-i over its standard deviation per label `[n, S, C]`, from outputs `[n, S, K]`,
        leverages `[n, S]` and noise variances `[n]`."""
        weighted = self.weights * leverage
        rest = (1.0 - weighted).clamp(min=1e-9)
        own = self.columns.expand_as(weighted).unsqueeze(2)
        scores = outputs.scatter_add(2, own, -weighted.unsqueeze(2))
        scores = scores / (noise.unsqueeze(1) * rest * (rest + leverage)).sqrt().unsqueeze(2)
        return by_label(scores, self.of_label, int(self.of_label.max()) + 1)

    def judge(self, scores: Tensor) -> Tensor:
        """The log-likelihood of all labels under each of n maps alone, at the best factor on its
        scores `[n, S, C]`: `[n]`."""
        factors = math.log(SHARPNESS) + STEP * torch.arange(-STEPS, STEPS + 1.0)
        return vertex(self.likelihoods(scores, factors))[1]

    def sharpness(self, scores: Tensor, maps: Tensor) -> float:
        """The best factor on the scores `[n, S, C]` for the mixture of maps with log-weights
        `[n]`."""

        def of_mixture(factors: Tensor) -> Tensor:
            return self.likelihoods(scores, factors, maps).squeeze(1)

        return math.exp(maximum(of_mixture, -3.0, 4.0, tolerance=0.05))

    def likelihoods(self, scores: Tensor, factors: Tensor, maps: Tensor | None = None) -> Tensor:
        """Log-likelihoods of all labels plus the log prior of the factor, at F log factors: of each
        map `[F, n]`, or of the mixture with log-weights `maps` `[F, 1]`."""
        own = self.labels.expand(scores.shape[:2]).unsqueeze(2)
        values = []
        for factor in factors.tolist():
            logits = math.exp(factor) * scores
            chances = logits.gather(2, own).squeeze(2) - logits.logsumexp(2)  # [n, S]
            if maps is not None:
                chances = (chances + maps.unsqueeze(1)).logsumexp(0, keepdim=True)
            unusual = (factor - math.log(SHARPNESS)) / DEVIATION
            values.append((chances * self.weights).sum(1) - unusual**2 / 2.0)
        return torch.stack(values)


def by_label(scores: Tensor, of_label: Tensor, count: int) -> Tensor:
    """The best score of each label over its tasks, `[N, B, count]` from `[N, B, K]`; -inf for a
    label without a column."""
    nothing = scores.new_full((*scores.shape[:2], count), -torch.inf)
    return nothing.scatter_reduce(2, of_label.expand_as(scores), scores, "amax")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def checked_prior(prior: Any) -> Prior:
    """The shares of a class prior as a list of their own. Raise if they are none."""
    if prior is None or (isinstance(prior, str) and prior == "uniform"):
        return prior
    if np.ndim(prior) != 1 or not all(0 < share < math.inf for share in prior):
        raise ValueError(
            "class_prior must be None, 'uniform' or a list of a positive share per label, got "
            f"{prior!r}"
        )
    return [float(share) for share in prior]


def ratios_of(prior: Prior, sums: HeadSums) -> Tensor | None:
    """r_c of a class prior per column `[K]`; a label's share is divided evenly among its tasks."""
    if prior is None:
        return None
    labels = tasks_and_labels(sums.columns)[1]
    count = int(labels.max()) + 1
    shares = [1.0] * count if isinstance(prior, str) else prior
    if count > len(shares):
        raise ValueError(f"class_prior has {len(shares)} shares, but there is a label {count - 1}")
    wanted = torch.tensor(shares).to(sums.counts)[labels] / labels.bincount()[labels]
    return wanted / wanted.sum() * sums.counts.sum() / sums.counts


class ExportedHead(nn.Module):
    """Maps, grid and heads: x `[B, ...]` to `predictive(x).mean` `[B, K]` or `predict(x)` `[B, C]`.

    Unlike the head's blocks, the batch may change the last bits of a sample's result. The factors L
    of the heads are inverted beforehand: ONNX has no triangular solve.
    """

    weight: Tensor  # [N, M, K]
    intercept: Tensor  # [N, K]
    shares: Tensor  # [N], of the maps
    mean: Tensor  # [N, M], of the features
    inverse: Tensor  # [N, M, M], L^-1
    noise: Tensor  # [N], noise variances over the sharpness squared
    labels: Tensor  # [K]

    def __init__(self, head: ExactHead, probabilities: bool) -> None:
        super().__init__()
        if probabilities and not head.basis.classes:
            raise ValueError("targets='values' has no probabilities: export() gives its mean")
        if head.sums is None:
            raise ValueError("nothing to export yet: update with some data first")
        solution = head.solution()
        heads = solution.heads
        self.maps = nn.ModuleList([copy.deepcopy(module) for module in head.grid.maps])
        self.limit = head.grid.limit
        self.bits = head.grid.bits
        self.floats = head.grid.padded
        self.probabilities = probabilities
        self.register_buffer("shares", head.weights)
        self.register_buffer("weight", torch.stack([own.weight for own in heads]))
        self.register_buffer("intercept", torch.stack([own.intercept for own in heads]))
        if not probabilities:
            return
        factors = torch.stack([own.factor for own in heads])
        identity = torch.eye(factors.shape[1], dtype=factors.dtype, device=factors.device)
        inverse = torch.linalg.solve_triangular(factors, identity, upper=False)
        self.register_buffer("inverse", inverse)
        self.register_buffer("mean", torch.stack([own.mean for own in heads]))
        noise = [own.noise_variance / solution.sharpness**2 for own in heads]
        self.register_buffer("noise", factors.new_tensor(noise))
        self.constant = heads[0].intercept_leverage
        labels = tasks_and_labels(solution.columns)[1]
        self.register_buffer("labels", labels)
        self.classes = head.classes or int(labels.max()) + 1

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() if x.dtype == torch.uint8 and self.floats else x
        features = torch.stack([self._features(module(x)) for module in self.maps])
        values = features @ self.weight + self.intercept.unsqueeze(1)
        shares = self.shares.view(-1, 1, 1)
        if not self.probabilities:
            return (shares * values).sum(0)
        solved = self.inverse @ (features - self.mean.unsqueeze(1)).mT
        leverage = solved.square().sum(1) + self.constant
        deviation = (self.noise.unsqueeze(1) * (1.0 + leverage)).sqrt()
        scores = by_label(values / deviation.unsqueeze(2), self.labels, self.classes)
        return (shares * scores.softmax(-1)).sum(0)

    def _features(self, features: Tensor) -> Tensor:
        features = features if features.dtype == torch.float64 else features.float()
        return on_grid(features, self.limit, self.bits).double()
