"""Samples kept besides the sums, and leave-one-out predictions for them in closed form.

Without sample i of weight w, leverage h and target y the head's output at i would be

    f_-i = (f_i - w h y) / (1 - w h),    of variance sigma^2 (1 + h / (1 - w h)),

so the log-likelihood of a few kept samples' labels, at the best temperature, shows how good a
lambda is on new data. The mixture of all maps has one temperature. The evidence measures squared
errors instead, and prefers a lambda about ten times too large if there are many classes. It serves
as the prior, with the weight of `EVIDENCE` samples, and decides alone if none are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .ridge import DEVIATION, SHARPNESS, STEP, STEPS, maximum


@dataclass(frozen=True)
class HeldOut:
    """S kept samples, for which leave-one-out predictions are computed."""

    columns: Tensor  # [S], indices of the head's K columns
    weights: Tensor  # [S], in the sums
    table: Tensor  # [C, tasks], the columns of each label
    labels: Tensor  # [S]
    across: str  # how tasks compete, see `by_label`

    def scores(self, outputs: Tensor, leverage: Tensor, noise: Tensor) -> Tensor:
        """f_-i over its standard deviation `[n, S, K]`, from outputs `[n, S, K]`, leverages
        `[n, S]` and noise variances `[n]`."""
        weighted = self.weights * leverage
        rest = (1.0 - weighted).clamp(min=1e-9)
        own = self.columns.expand_as(weighted).unsqueeze(2)
        scores = outputs.scatter_add(2, own, -weighted.unsqueeze(2))
        return scores / (noise.unsqueeze(1) * rest * (rest + leverage)).sqrt().unsqueeze(2)

    def judge(self, scores: Tensor) -> Tensor:
        """The log-likelihood of all labels under each of n maps alone, at the best factor on its
        scores `[n, S, K]`: `[n]`. The maximum is that of a parabola through a few factors."""
        factors = math.log(SHARPNESS) + STEP * torch.arange(-STEPS, STEPS + 1.0)
        values = self.likelihoods(scores, factors)
        best = values[1:-1].argmax(0, keepdim=True) + 1
        left, middle, right = values.gather(0, torch.cat([best - 1, best, best + 1]))
        bend = (2.0 * middle - left - right).clamp(min=1e-9)
        rise = (right - left).square() / (8.0 * bend)
        return middle + rise.clamp(max=(right - left).abs() / 2)

    def sharpness(self, scores: Tensor, maps: Tensor) -> float:
        """The best factor on the scores `[n, S, K]` for the mixture of maps with log-weights
        `[n]`."""

        def of_mixture(factors: Tensor) -> Tensor:
            return self.likelihoods(scores, factors, maps).squeeze(1)

        return math.exp(maximum(of_mixture, -3.0, 4.0, tolerance=0.05))

    def likelihoods(self, scores: Tensor, factors: Tensor, maps: Tensor | None = None) -> Tensor:
        """Log-likelihoods of all labels plus the log prior of the factor, at F log factors: of each
        map `[F, n]`, or of the mixture with log-weights `maps` `[F, 1]`."""
        if self.across == "max":  # a factor does not change which is the largest
            scores = by_label(scores, self.table, "max")
        own = self.labels.expand(scores.shape[:2]).unsqueeze(2)
        values = []
        for factor in factors.tolist():
            logits = math.exp(factor) * scores
            if self.across != "max":
                logits = by_label(logits, self.table, self.across)
            chances = logits.gather(2, own).squeeze(2) - logits.logsumexp(2)  # [n, S]
            if maps is not None:
                chances = (chances + maps.unsqueeze(1)).logsumexp(0, keepdim=True)
            unusual = (factor - math.log(SHARPNESS)) / DEVIATION
            values.append((chances * self.weights).sum(1) - unusual**2 / 2.0)
        return torch.stack(values)


def label_table(labels: Tensor, count: int) -> Tensor:
    """The columns of each of `count` labels: `[count, most]`, padded with `len(labels)`."""
    ascending, order = labels.sort(stable=True)
    first = torch.searchsorted(ascending, ascending)
    rank = torch.arange(len(labels), device=labels.device) - first  # among columns of its label
    table = torch.full((count, int(rank.max()) + 1), len(labels), device=labels.device)
    table[ascending, rank] = order
    return table


def by_label(scores: Tensor, table: Tensor, across: str) -> Tensor:
    """Logits `[N, B, C]` of labels from scores `[N, B, K]` of columns; -inf without a column."""
    scores = scores - scores.amax(2, keepdim=True)
    nothing = torch.full_like(scores[..., :1], -torch.inf)  # the padding of the table
    tasks = torch.cat([scores, nothing], dim=2)[..., table]  # [N, B, C, tasks]
    return tasks.amax(-1) if across == "max" else tasks.logsumexp(-1)
