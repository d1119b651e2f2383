r"""What a head says of a sample that it has not seen, in closed form, and how likely that makes it.

Without sample i of weight w, leverage h and target y the head's output there would be

    f_-i = (f_i - w h y) / (1 - w h),    of variance sigma^2 (1 + h / (1 - w h)),

so a few samples that are kept (see `kept.py`) tell how well a lambda does on new data: by the
log-likelihood of their labels at the best temperature. All maps together have one temperature, that
of their mixture. The evidence judges squared errors instead, and asks for about ten times too large
a lambda where classes are many. It needs no samples, though, and so it is the prior: it counts as
much as `PRIOR` samples. Without samples it decides alone.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .line_search import maximize
from .targets import by_label

DEFAULT_SHARPNESS = 2.2  # the best on most data lies between 1.5 and 3
PRIOR = 200.0  # samples as which the evidence counts, per sample and output
_DEVIATION = 0.4  # of the logarithm of the sharpness, before any sample
_STEP = 0.35  # of that logarithm, where trials of lambda are compared
_STEPS = 4  # to either side
_AT_ONCE = 2**22  # scores that are looked at together


@dataclass(frozen=True)
class HeldOut:
    """S samples of which every head's leave-one-out predictions are known."""

    columns: Tensor  # [S], places among the head's K columns
    weights: Tensor  # [S], in the sums
    table: Tensor  # [C, tasks], the columns of each label
    labels: Tensor  # [S]
    across: str  # how tasks compete, see `by_label`

    def scores(self, outputs: Tensor, leverage: Tensor, noise: Tensor) -> Tensor:
        """f_-i in units of its deviation `[n, S, K]`, from outputs `[n, S, K]`, leverages `[n, S]`
        and noise variances `[n]`."""
        weighted = self.weights * leverage
        rest = (1.0 - weighted).clamp(min=1e-9)
        own = self.columns.expand_as(weighted).unsqueeze(2)
        scores = outputs.scatter_add(2, own, -weighted.unsqueeze(2))
        return scores / (noise.unsqueeze(1) * rest * (rest + leverage)).sqrt().unsqueeze(2)

    def judge(self, scores: Tensor) -> Tensor:
        """How likely each of n maps alone makes all labels, at the best factor on its scores
        `[n, S, K]`: `[n]`. As good as a parabola through the best of a few factors tells."""
        start = math.log(DEFAULT_SHARPNESS)
        factors = [start + k * _STEP for k in range(-_STEPS, _STEPS + 1)]
        values = self._log_likelihoods(scores, factors)  # [factors, n]
        best = values[1:-1].argmax(0, keepdim=True) + 1
        left, middle, right = (values.gather(0, best + k)[0] for k in (-1, 0, 1))
        bend = (2.0 * middle - left - right).clamp(min=1e-9)
        rise = ((right - left) ** 2 / (8.0 * bend)).clamp(max=(right - left).abs() / 2)
        return middle + rise

    def sharpness(self, scores: Tensor, maps: Tensor) -> float:
        """The factor on the scores `[n, S, K]` that suits the mixture of maps of weights `[n]`."""

        def log_likelihood(factors: list[float]) -> list[float]:
            values: list[float] = self._log_likelihoods(scores, factors, maps.log()).tolist()
            return values

        start = math.log(DEFAULT_SHARPNESS)
        width = _STEP * _STEPS
        return math.exp(maximize(log_likelihood, start, -3.0, 4.0, width=width, tolerance=0.05))

    def _log_likelihoods(
        self, scores: Tensor, factors: list[float], maps: Tensor | None = None
    ) -> Tensor:
        """Of all labels at factors with these logarithms: of each map `[factors, n]`, or of the
        mixture with log-weights `maps` `[factors]`. The factor has a prior of its own."""
        if self.across == "max":  # the largest stays the largest
            scores = by_label(scores, self.table, "max")
        found = []
        for some in scores.new_tensor(factors).split(max(1, _AT_ONCE // scores.numel())):
            logits = (some.exp().view(-1, 1, 1, 1) * scores).flatten(0, 1)  # [some * n, S, .]
            if self.across != "max":
                logits = by_label(logits, self.table, self.across)
            own = self.labels.expand(logits.shape[:2]).unsqueeze(2)
            chances = logits.gather(2, own).squeeze(2) - logits.logsumexp(2)
            chances = chances.unflatten(0, (len(some), -1))
            unusual = (some - math.log(DEFAULT_SHARPNESS)) / _DEVIATION
            if maps is not None:
                chances = (chances + maps.unsqueeze(1)).logsumexp(1, keepdim=True)
            values = (chances * self.weights).sum(2) - unusual.square().unsqueeze(1) / 2.0
            found.append(values if maps is None else values.squeeze(1))
        return torch.cat(found)
