"""Samples kept besides the sums, and leave-one-out predictions for them in closed form.

Without sample i of weight w, leverage h and target y the head's output at i would be

    f_-i = (f_i - w h y) / (1 - w h),    of variance sigma^2 (1 + h / (1 - w h)),

so the log-likelihood of a few kept samples' labels, at the best temperature, shows how good a
lambda is on new data. The mixture of all maps has one temperature. The evidence measures squared
errors instead, and prefers a lambda about ten times too large if there are many classes. It serves
as the prior, with the weight of `PRIOR` samples, and decides alone if none are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache, partial

import torch
from torch import Tensor

from .line_search import maximize
from .targets import by_label

DEFAULT_SHARPNESS = 2.2  # the best value on most data lies between 1.5 and 3
PRIOR = 200.0  # the weight of the evidence per sample and output, in samples
_DEVIATION = 0.4  # of the logarithm of the sharpness, under its prior
_STEP = 0.35  # of that logarithm, when trials of lambda are compared
_STEPS = 4  # to either side
_AT_ONCE = 2**22  # scores or hashes in memory at a time


@dataclass(frozen=True)
class KeptSamples:
    """S samples in ascending order of (key, column), each pair once; 2 N M bytes each.

    Whether a sample is kept depends on a hash of its inputs alone. So the kept samples are a
    function of the multiset of samples, as the sums are: they can be merged, and removed with it.
    """

    keys: Tensor  # [S]
    columns: Tensor  # [S], see `column_numbers`
    weights: Tensor  # [S], float64
    features: Tensor  # [N, S, M], float16, in units of the grid's limit

    @classmethod
    def empty(cls, n: int, features: int, device: torch.device) -> KeptSamples:
        whole = torch.zeros(0, dtype=torch.int64, device=device)
        nothing = torch.zeros(n, 0, features, dtype=torch.float16, device=device)
        return cls(whole, whole, whole.double(), nothing)

    def plus(self, other: KeptSamples, sign: int = 1) -> KeptSamples:
        """Add or remove the samples of the other; weights of equal samples add up."""
        if not len(other.keys):
            return self
        other = KeptSamples(*[getattr(other, f.name).to(self.keys.device) for f in fields(self)])
        pairs = [torch.stack([each.keys, each.columns], 1) for each in (self, other)]
        found, place = torch.cat(pairs).unique(dim=0, return_inverse=True)
        weights = torch.cat([self.weights, sign * other.weights])
        weights = weights.new_zeros(len(found)).index_add_(0, place, weights)
        # the index of one of the equal samples
        source = torch.empty_like(found[:, 0])
        source[place] = torch.arange(len(place), device=place.device)
        left = weights != 0
        features = torch.cat([self.features, other.features], 1)
        return KeptSamples(found[left, 0], found[left, 1], weights[left], features[:, source[left]])

    def state_dict(self) -> dict[str, Tensor]:
        return {f"kept_{field.name}": getattr(self, field.name).clone() for field in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], device: torch.device) -> KeptSamples:
        return cls(*[state[f"kept_{field.name}"].to(device) for field in fields(cls)])


def keys_of(x: Tensor) -> Tensor:
    """A hash of every sample's values: `[B]`, int64, the same for equal numbers of any type."""
    flat = x.reshape(len(x), -1)
    factors = _factors(flat.shape[1], x.device)
    keys = []
    for part in flat.split(max(1, _AT_ONCE // max(1, flat.shape[1]))):
        bits = (part.double() + 0.0).view(torch.int64)  # + 0: minus zero is zero
        # multilinear hashing; the lower halves of small integers are all zeros
        keys.append(((bits ^ _upper(bits, 32)) * factors).sum(1))
    return _mixed(torch.cat(keys))


@lru_cache(maxsize=8)
def _factors(count: int, device: torch.device) -> Tensor:
    """Pseudo-random odd numbers."""
    return _mixed(torch.arange(1, count + 1, device=device)) | 1


def _mixed(keys: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of the key; products wrap at 2^64."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        keys = (keys ^ _upper(keys, shift)) * factor
    return keys ^ _upper(keys, 31)


def _upper(bits: Tensor, shift: int) -> Tensor:
    return (bits >> shift) & ((1 << (64 - shift)) - 1)


@dataclass(frozen=True)
class HeldOut:
    """S kept samples, for which leave-one-out predictions are computed."""

    columns: Tensor  # [S], indices of the head's K columns
    weights: Tensor  # [S], in the sums
    table: Tensor  # [C, tasks], the columns of each label
    labels: Tensor  # [S]
    features: Tensor  # [N, S, M], as kept
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
        start = math.log(DEFAULT_SHARPNESS)
        factors = [start + k * _STEP for k in range(-_STEPS, _STEPS + 1)]
        values = self._log_likelihoods(scores, factors)  # [factors, n]
        best = values[1:-1].argmax(0, keepdim=True) + 1
        left, middle, right = (values.gather(0, best + k)[0] for k in (-1, 0, 1))
        bend = (2.0 * middle - left - right).clamp(min=1e-9)
        rise = ((right - left) ** 2 / (8.0 * bend)).clamp(max=(right - left).abs() / 2)
        return middle + rise

    def sharpness(self, scores: Tensor, maps: Tensor) -> float:
        """The best factor on the scores `[n, S, K]` for the mixture of maps with weights `[n]`."""
        start, width = math.log(DEFAULT_SHARPNESS), _STEP * _STEPS
        likelihoods = partial(self._log_likelihoods, scores, maps=maps.log())
        return math.exp(maximize(likelihoods, start, -3.0, 4.0, width=width, tolerance=0.05))

    def _log_likelihoods(
        self, scores: Tensor, factors: list[float], maps: Tensor | None = None
    ) -> Tensor:
        """Log-likelihoods of all labels plus the log prior of the factor, at log `factors`: of each
        map `[factors, n]`, or of the mixture with log-weights `maps` `[factors]`."""
        if self.across == "max":  # a factor does not change which is the largest
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
