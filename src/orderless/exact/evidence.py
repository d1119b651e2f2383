"""Posteriors of linear heads from their sufficient statistics, and their evidence.

With centred features z, their mean variance v, K' target contrasts y and the model

    y = b + W^T z + e,    W ~ N(0, 1/(alpha v)),    e ~ N(0, 1/beta),    b flat,

let A = Z^T Z, B = Z^T Y, lambda = alpha v / beta and n' = n - 1 (the intercept takes one dimension;
without `standardize` there is none, features are as they are, v = 1 and n' = n). All features have
one scale: with a scale per feature, those that hardly vary would count as much as any other. The
posterior of W is N((A + lambda I)^-1 B, (A + lambda I)^-1 / beta), and the log density of the data,
with the head integrated out, is

    K'/2 [M log lambda - log|A + lambda I| + n' log beta - n' log 2 pi] - beta/2 R(lambda)
    R(lambda) = tr Y^T Y - tr B^T (A + lambda I)^-1 B

For classes, targets are 0/1 columns that sum to 1, so only the K' = K - 1 orthonormal contrasts of
K columns are data; traces over them are traces over all columns less their mean entry.

Given lambda the best beta is K' n' / R, so a search over one number remains, with one Cholesky
factorisation per trial of lambda. It maximises the evidence or, if samples are kept, mostly their
leave-one-out likelihood: see `leave_one_out.py`. A model of every second feature costs an eighth
per trial, and so on down to 128 features, where the search takes place. The whole model is solved
once, at the lambda extrapolated from the smaller ones; it is within a third of the best, which
hardly changes predictions.

Several lambdas are tried at a time, and only their scores leave the device: a GPU would otherwise
wait for Python most of the time. Each head is solved separately, so that its bits do not depend on
the number of heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .leave_one_out import PRIOR, HeldOut
from .line_search import maximize, vertex

_CHEAP = 128  # features; trials of such a model are cheap
_AT_ONCE = 2**20  # entries of the matrices that are factorised as one batch
_SMALLEST_NOISE = 1e-12  # noise variance of data with a perfect fit
_STEP = 0.5  # between trials of log lambda near the maximum
_DRIFT = 0.4  # the usual change of log lambda when features double


@dataclass(frozen=True)
class HeadPosterior:
    """One particle's head. On features phi the mean is `phi @ weight + intercept`, `[B, K]`."""

    weight: Tensor  # [M, K]
    intercept: Tensor  # [K]
    factor: Tensor  # [M, M], lower: L L^T = A + lambda I
    mean: Tensor  # [M], of the features
    prior_precision: float  # alpha
    noise_variance: float  # 1 / beta
    log_evidence: float
    intercept_leverage: float  # 1/n, or 0 without an intercept
    mean_leverage: float  # over the data: the number of parameters they determine, per sample
    held_out: Tensor | None  # [S, K], leave-one-out scores of the kept samples

    def outputs(self, features: Tensor) -> Tensor:
        """Means `[B, K]` at features `[B, M]`, float64."""
        return torch.addmm(self.intercept, features, self.weight)

    def leverage(self, features: Tensor) -> Tensor:
        """z^T (A + lambda I)^-1 z + 1/n: `[B]`; times the noise variance, the head's variance."""
        rows = features - self.mean
        solved = torch.linalg.solve_triangular(self.factor, rows.T, upper=False)
        return solved.square().sum(0) + self.intercept_leverage

    def variance(self, features: Tensor) -> Tensor:
        """The predictive variance at features `[B, M]`: `[B]`."""
        return self.noise_variance * (1.0 + self.leverage(features))

    def novelty(self, features: Tensor, classes: bool) -> Tensor:
        """How unlike the data features `[B, M]` are: `[B]`.

        The sum of two parts, each about 1 on average over the data: the leverage over its mean, and
        for classes the outputs' distance from any class, min_c |f - e_c|^2 / (K sigma^2).
        """
        strangeness = self.leverage(features) / max(self.mean_leverage, 1e-12)
        if not classes:
            return strangeness
        outputs = self.outputs(features)
        # |f - e_c|^2 = |f|^2 - 2 f_c + 1 is smallest where f_c is largest
        distance = outputs.square().sum(1) - 2.0 * outputs.amax(1) + 1.0
        return strangeness + distance / (outputs.shape[1] * self.noise_variance)


class Trials(NamedTuple):
    """Results for T lambdas."""

    scores: Tensor  # [T], to be maximised
    log_evidence: Tensor  # [T]
    beta: Tensor  # [T]
    held_out: Tensor | None  # [T, S, K]
    factors: Tensor  # [T, M, M], L L^T = A + lambda I
    solved: Tensor  # [T, M, K], L^-1 B


@dataclass(frozen=True)
class NormalEquations:
    """The sums that determine A, B and R of a head; `standardize` centres the features."""

    gram: Tensor  # [M, M], its lower triangle, before centring
    right: Tensor  # B [M, K]
    total: float  # tr Y^T Y over the contrasts
    count: float  # n
    outputs: int  # K'
    classes: bool
    standardize: bool
    mean: Tensor  # [M]
    target_mean: Tensor  # [K]
    held: HeldOut | None = None
    rows: Tensor | None = None  # [S, M], centred features of the samples held out, which score

    @classmethod
    def of(
        cls, gram: Tensor, moments: Tensor, squares: Tensor, *, classes: bool, standardize: bool
    ) -> NormalEquations:
        """From gram `[M+1, M+1]` (its lower triangle), moments `[K, M+1]`, squares `[K]`."""
        count, sums, targets = gram[-1, -1], gram[-1, :-1], moments[:, -1]
        gram, right, columns = gram[:-1, :-1], moments[:, :-1].T, len(targets)
        total = squares.sum()
        if standardize:
            mean, target_mean = sums / count, targets / count
            right = right - mean.unsqueeze(1) * targets
            total = total - (targets * target_mean).sum()
        else:
            mean, target_mean = sums * 0.0, targets * 0.0
            total = total - count / columns if classes else total
        outputs = columns - 1 if classes else columns
        data = gram, right, total.item(), count.item(), outputs
        return cls(*data, classes, standardize, mean, target_mean)

    @property
    def dimensions(self) -> float:  # n'
        return self.count - self.standardize

    @property
    def intercept_leverage(self) -> float:
        return self.standardize / self.count

    @property
    def unit(self) -> float:
        """The unit of lambda: the mean diagonal of A, or n if no feature varies."""
        squares = self.gram.diagonal()
        centred = squares - self.count * self.mean.square()
        found, rounding = torch.stack([centred.mean(), 1e-12 * squares.mean()]).tolist()
        return found if found > rounding else self.count

    @property
    def variance(self) -> float:  # v
        return self.unit / self.count if self.standardize else 1.0

    @property
    def informative(self) -> bool:
        return self.outputs > 0 and self.dimensions > 0 and self.total > 0

    def every(self, step: int) -> NormalEquations:
        """A model of every `step`-th feature."""
        return replace(
            self,
            gram=self.gram[::step, ::step],
            right=self.right[::step],
            mean=self.mean[::step],
            rows=None if self.rows is None else self.rows[:, ::step],
        )

    def matrix(self) -> Tensor:
        """A `[M, M]`, its lower triangle; a copy."""
        return torch.addr(self.gram, self.mean, self.mean, alpha=-self.count)

    def at(
        self, matrices: Callable[[], Tensor], ratios: Tensor, beta: float | None = None
    ) -> Trials:
        """Try lambdas `[T]`; `matrices` makes T copies of A, and beta=None takes the best betas."""
        factors = safe_cholesky(matrices, ratios)
        right, columns = self.right, self.right.shape[1]
        if self.rows is not None:
            right = torch.cat([right, self.rows.T], dim=1)
        solved = torch.linalg.solve_triangular(factors, right, upper=False)
        solved, rows = solved[..., :columns], solved[..., columns:]
        explained = solved.square().sum((1, 2))
        if self.classes:  # over the contrasts of the columns
            explained = explained - solved.sum(2).square().sum(1) / columns
        freedom = self.outputs * self.dimensions
        residual = (self.total - explained).clamp(min=0.0)
        noise = freedom / residual.clamp(min=freedom * _SMALLEST_NOISE)
        noise = noise if beta is None else torch.full_like(noise, beta)
        roots = factors.diagonal(dim1=1, dim2=2).log().sum(1)
        volume = factors.shape[1] * ratios.log() - 2.0 * roots
        scale = self.dimensions * (noise / (2.0 * math.pi)).log()
        evidence = self.outputs / 2 * (volume + scale) - noise / 2 * residual
        evidence = evidence if self.outputs > 0 else torch.zeros_like(evidence)
        scores, held_out = PRIOR * evidence / max(freedom, 1.0), None
        if self.held is not None:
            leverage = rows.square().sum(1) + self.intercept_leverage
            outputs = rows.mT @ solved + self.target_mean
            held_out = self.held.scores(outputs, leverage, 1.0 / noise)
            scores = scores + self.held.judge(held_out)
        return Trials(scores, evidence, noise, held_out, factors, solved)

    def best_ratio(self) -> float:
        """The best lambda, extrapolated from models with fewer features."""
        size = len(self.gram)
        steps = [2**k for k in range(1, size.bit_length()) if size > _CHEAP * 2 ** (k - 1)]
        if not steps:
            return self.unit * math.exp(self._search(math.log(0.1), 0.01))
        peak = self.every(steps[-1])._search(math.log(0.1), _STEP)
        before = peak - _DRIFT
        for step in reversed(steps[:-1]):
            start = 2.0 * peak - before  # extrapolated to twice as many features
            values = self.every(step)._scores()([start - _STEP, start, start + _STEP]).tolist()
            before, peak = peak, start + _STEP * vertex(*values)
        return self.unit * math.exp(2.0 * peak - before)

    def _search(self, start: float, tolerance: float) -> float:
        """The best log(lambda / unit), by a global search."""
        return maximize(self._scores(), start, -25.0, 15.0, width=5.0, tolerance=tolerance)

    def _scores(self) -> Callable[[list[float]], Tensor]:
        """The scores as a function of several log(lambda / unit)."""
        unit, matrix = self.unit, self.matrix()
        together = max(1, _AT_ONCE // matrix.numel())

        def scores(points: list[float]) -> Tensor:
            ratios = matrix.new_tensor([unit * math.exp(point) for point in points])
            parts = [
                self.at(lambda part=part: matrix.repeat(len(part), 1, 1), part).scores  # type: ignore[misc]
                for part in ratios.split(together)
            ]
            return torch.cat(parts)

        return scores


def solve_head(
    equations: NormalEquations,
    prior_precision: float | None = None,
    noise_variance: float | None = None,
) -> HeadPosterior:
    """The head's posterior, with alpha and 1/beta as given or optimised."""
    variance = equations.variance
    if prior_precision is not None and noise_variance is not None:
        ratio, beta = prior_precision * variance * noise_variance, 1.0 / noise_variance
    elif equations.informative:
        ratio, beta = equations.best_ratio(), None
    else:  # one class or one sample: nothing to choose lambda by
        ratio, beta = variance, 1.0
    ratios = equations.mean.new_tensor([ratio])
    trial = equations.at(lambda: equations.matrix().unsqueeze(0), ratios, beta)
    factor, solved = trial.factors[0], trial.solved[0]
    weight = torch.linalg.solve_triangular(factor.T, solved, upper=True)
    intercept = equations.target_mean - equations.mean @ weight
    # M - lambda tr (A + lambda I)^-1 parameters are determined by the data
    probes = torch.linalg.solve_triangular(factor, _signs(len(factor)).to(factor), upper=False)
    found = torch.stack([probes.square().sum(), trial.beta[0], trial.log_evidence[0]]).tolist()
    squares, precision, log_evidence = found
    parameters = len(factor) - ratio * squares / probes.shape[1]
    share, most = equations.intercept_leverage, 0.999 * equations.dimensions
    leverage = share + min(max(parameters, 0.0), most) / max(equations.dimensions, 1.0)
    known = equations.informative or prior_precision is not None
    return HeadPosterior(
        weight,
        intercept,
        factor,
        equations.mean,
        prior_precision=ratio * precision / variance,
        noise_variance=1.0 / precision,
        log_evidence=log_evidence if known else 0.0,
        intercept_leverage=share,
        mean_leverage=min(leverage, 0.999),
        held_out=None if trial.held_out is None else trial.held_out[0],
    )


@lru_cache(maxsize=4)
def _signs(size: int) -> Tensor:
    """Fixed random signs u `[M, 32]`: the trace of B is about the mean of u^T B u."""
    generator = torch.Generator().manual_seed(0x0FDE)
    return torch.randint(2, (size, 32), generator=generator) * 2.0 - 1.0


def safe_cholesky(matrices: Callable[[], Tensor], ridges: Tensor) -> Tensor:
    """Cholesky factors of matrices + ridge I `[T, M, M]`, with a little more ridge if rounding made
    one indefinite. Overwrites the result of `matrices`."""
    extra = torch.zeros_like(ridges)
    for _ in range(8):
        shifted = matrices()
        diagonal = shifted.diagonal(dim1=1, dim2=2)
        scale = torch.maximum(diagonal.mean(1), ridges)
        diagonal.add_((ridges + extra).unsqueeze(1))
        factors, failed = torch.linalg.cholesky_ex(shifted)
        if not failed.any():
            return factors
        more = torch.where(extra > 0, 10.0 * extra, 1e-13 * scale)
        extra = torch.where(failed != 0, more, extra)
    raise FloatingPointError(
        "the features' covariance is not positive definite even with a ridge of "
        f"{(extra / scale).max().item():.0e} of its size: were samples forgotten that "
        "had never been learned?"
    )
