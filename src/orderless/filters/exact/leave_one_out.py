r"""What a head says of a sample that it has not seen, in closed form, and how likely that makes it.

Without sample i of weight w, leverage h and target y the head's output there would be

    f_-i = (f_i - w h y) / (1 - w h),    of variance sigma^2 (1 + h / (1 - w h)),

so a few samples that are kept (see `kept.py`) tell how well a lambda does on new data: by the
log-likelihood of their labels at the best temperature. All maps together have one temperature, that
of their mixture. The evidence judges squared errors instead,
and asks for about ten times too large a lambda where classes are many. It needs no samples, though,
and so it is the prior: it counts as much as `PRIOR` samples. Without samples it decides alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .line_search import maximize
from .targets import by_label

DEFAULT_SHARPNESS = 2.2  # the best on most data lies between 1.5 and 3
PRIOR = 200.0  # samples as which the evidence counts, per sample and output
_DEVIATION = 0.4  # of the logarithm of the sharpness, before any sample


@dataclass(frozen=True)
class HeldOut:
    """S samples of which every head's leave-one-out predictions are known."""

    columns: Tensor  # [S], places among the head's K columns
    weights: Tensor  # [S], in the sums
    table: Tensor  # [C, tasks], the columns of each label
    labels: Tensor  # [S]
    across: str  # how tasks compete, see `by_label`

    def scores(self, outputs: Tensor, leverage: Tensor, noise: float) -> Tensor:
        """f_-i in units of its deviation `[S, K]`, from outputs `[S, K]` and leverages `[S]`."""
        weighted = self.weights * leverage
        rest = (1.0 - weighted).clamp(min=1e-9)
        scores = outputs.clone()
        scores[torch.arange(len(scores)), self.columns] -= weighted
        return scores / (noise * rest * (rest + leverage)).sqrt().unsqueeze(1)

    def judge(self, scores: Tensor, maps: Tensor) -> tuple[float, float]:
        """How likely the mixture of maps with weights `[n]` and scores `[n, S, K]` makes all
        labels, at the best factor on the scores; and that factor."""

        def log_likelihood(log_sharpness: float) -> float:
            logits = by_label(math.exp(log_sharpness) * scores, self.table, self.across)
            chances = logits.log_softmax(2)[:, torch.arange(len(self.labels)), self.labels]
            mixture = (chances + maps.log().unsqueeze(1)).logsumexp(0)
            unusual = (log_sharpness - math.log(DEFAULT_SHARPNESS)) / _DEVIATION
            return (self.weights @ mixture).item() - unusual**2 / 2.0

        start = math.log(DEFAULT_SHARPNESS)
        best = maximize(log_likelihood, start, -3.0, 4.0, step=0.5, tolerance=1e-3)
        return log_likelihood(best), math.exp(best)
