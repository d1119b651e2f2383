"""Posteriors of linear heads from their sums, and the choice of the ridge.

With centred features z, their mean variance v, K' target contrasts y and the model

    y = b + W^T z + e,    W ~ N(0, 1/(alpha v)),    e ~ N(0, 1/beta),    b flat,

let A = Z^T Z, B = Z^T Y, lambda = alpha v / beta and n' = n - 1: the intercept takes one dimension.
All features have one scale: with a scale per feature, those that hardly vary would count as much as
any other. The posterior of W is N((A + lambda I)^-1 B, (A + lambda I)^-1 / beta), and the log
density of the data, with the head integrated out, is

    K'/2 [M log lambda - log|A + lambda I| + n' log beta - n' log 2 pi] - beta/2 R(lambda)
    R(lambda) = tr Y^T Y - tr B^T (A + lambda I)^-1 B

For classes, targets are 0/1 columns that sum to 1, so only the K' = K - 1 orthonormal contrasts of
K columns are data; traces over them are traces over all centred columns. Given lambda the best beta
is K' n' / R, so a search over one number remains: see `choose_ridge`.

Several lambdas are tried at a time, and only their scores leave the device: a GPU would otherwise
wait for Python most of the time. Each head is solved separately, so that its bits do not depend on
the number of heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .solution import HeldOut

# Every number that was set by hand to choose the ridge and the temperature.

# the ridge lambda
EVIDENCE = 200.0  # the weight of the evidence per sample and output, in samples held out
CHEAP = 128  # features; trials of such a model are cheap
AROUND = 0.5  # between trials of log lambda near the maximum
DRIFT = 0.4  # the usual change of log lambda when features double
LOWEST = -25.0  # log lambda, in units of the features' mean square
HIGHEST = 15.0
SMALLEST_NOISE = 1e-12  # noise variance of data with a perfect fit

# the temperature of probabilities: the sharpness is its inverse
SHARPNESS = 2.2  # the best value on most data lies between 1.5 and 3
DEVIATION = 0.4  # of the logarithm of the sharpness, under its prior
STEP = 0.35  # of that logarithm, when trials of lambda are compared
STEPS = 4  # to either side

_AT_ONCE = 2**20  # entries of the matrices that are factorised as one batch


@dataclass(frozen=True)
class HeadPosterior:
    """One map's head. On features phi the mean is `phi @ weight + intercept`, `[B, K]`."""

    weight: Tensor  # [M, K]
    intercept: Tensor  # [K]
    factor: Tensor  # [M, M], lower: L L^T = A + lambda I
    mean: Tensor  # [M], of the features
    prior_precision: float  # alpha
    noise_variance: float  # 1 / beta
    log_evidence: float
    intercept_leverage: float  # 1/n
    held_out: Tensor | None  # [S, C], leave-one-out scores of the kept samples

    def outputs(self, features: Tensor) -> Tensor:
        """Means `[B, K]` at features `[B, M]`, float64."""
        return torch.addmm(self.intercept, features, self.weight)

    def variance(self, features: Tensor) -> Tensor:
        """The predictive variance sigma^2 (1 + 1/n + z^T (A + lambda I)^-1 z): `[B]`."""
        rows = features - self.mean
        solved = torch.linalg.solve_triangular(self.factor, rows.T, upper=False)
        leverage = solved.square().sum(0) + self.intercept_leverage
        return self.noise_variance * (1.0 + leverage)


@dataclass(frozen=True)
class NormalEquations:
    """What the sums say about a head."""

    gram: Tensor  # [M, M], its lower triangle, before centring
    right: Tensor  # B [M, K]
    total: float  # tr Y^T Y over the contrasts
    count: float  # n
    mean: Tensor  # [M]
    target_mean: Tensor  # [K]
    outputs: int  # K'
    held: HeldOut | None = None

    @classmethod
    def of(
        cls,
        gram: Tensor,
        moments: Tensor,
        squares: Tensor,
        *,
        classes: bool,
        constant: float = 1.0,
    ) -> NormalEquations:
        """From gram `[M+1, M+1]` (its lower triangle), moments `[K, M+1]` and squares `[K]`, where
        the last feature is constant."""
        count = gram[-1, -1] / constant**2
        mean = gram[-1, :-1] / constant / count
        targets = moments[:, -1] / constant
        target_mean = targets / count
        total = squares.sum() - (targets * target_mean).sum()
        right = moments[:, :-1].T - mean.unsqueeze(1) * targets
        outputs = len(targets) - classes
        gram = gram[:-1, :-1]
        return cls(gram, right, total.item(), count.item(), mean, target_mean, outputs)

    @cached_property
    def dimensions(self) -> float:  # n'
        return self.count - 1.0

    @cached_property
    def unit(self) -> float:
        """The unit of lambda: the mean diagonal of A, or n if no feature varies."""
        squares = self.gram.diagonal()
        centred = squares - self.count * self.mean.square()
        size, rounding = torch.stack([centred.mean(), 1e-12 * squares.mean()]).tolist()
        return size if size > rounding else self.count

    @property
    def variance(self) -> float:  # v
        return self.unit / self.count

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
            held=self.held and replace(self.held, rows=self.held.rows[:, ::step]),
        )


@dataclass(frozen=True)
class Minimisers:
    """For T lambdas the W that minimises |Y - Z W|^2 + lambda |W|^2, as two factors: L^T W = S."""

    ridges: Tensor  # [T]
    factors: Tensor  # L [T, M, M], L L^T = A + lambda I
    solved: Tensor  # S = L^-1 B [T, M, K]


def minimise(equations: NormalEquations, ridges: Tensor) -> Minimisers:
    """Solve for several lambdas `[T]`."""
    mean = equations.mean
    centred = torch.addr(equations.gram, mean, mean, alpha=-equations.count)
    shifted = centred.expand(len(ridges), -1, -1).contiguous()
    shifted.diagonal(dim1=1, dim2=2).add_(ridges.unsqueeze(1))
    factors = safe_cholesky(shifted)
    solved = torch.linalg.solve_triangular(factors, equations.right, upper=False)
    return Minimisers(ridges, factors, solved)


@dataclass(frozen=True)
class Scores:
    """How probable the data are under T lambdas."""

    log_evidence: Tensor  # [T]
    beta: Tensor  # [T]
    held_out: Tensor | None  # [T, S, C], leave-one-out scores
    total: Tensor  # [T], to be maximised


def score(equations: NormalEquations, trials: Minimisers, beta: float | None = None) -> Scores:
    """Score minimisers, under the best beta of each unless it is given."""
    explained = trials.solved.square().sum((1, 2))
    freedom = equations.outputs * equations.dimensions
    residual = (equations.total - explained).clamp(min=0.0)
    precision = freedom / residual.clamp(min=freedom * SMALLEST_NOISE)
    if beta is not None:
        precision = torch.full_like(precision, beta)
    roots = trials.factors.diagonal(dim1=1, dim2=2).log().sum(1)
    volume = trials.factors.shape[1] * trials.ridges.log() - 2.0 * roots
    scale = equations.dimensions * (precision / (2.0 * math.pi)).log()
    evidence = equations.outputs / 2 * (volume + scale) - precision / 2 * residual
    total = EVIDENCE * evidence / max(freedom, 1.0)
    held = equations.held
    if held is None:
        return Scores(evidence, precision, None, total)
    rows = torch.linalg.solve_triangular(trials.factors, held.rows.T, upper=False)
    leverage = rows.square().sum(1) + 1.0 / equations.count
    outputs = rows.mT @ trials.solved + equations.target_mean
    held_out = held.scores(outputs, leverage, 1.0 / precision)
    return Scores(evidence, precision, held_out, total + held.judge(held_out))


def choose_ridge(equations: NormalEquations) -> float:
    """The lambda with the best score: the likelihood of the samples held out, with the evidence as
    prior, or the evidence alone if there are none.

    Assumes that W minimises |Y - Z W|^2 + lambda |W|^2 for the very A, B and lambda of the sums.
    Only then is tr B^T (A + lambda I)^-1 B the explained sum of squares, and (f_i - w h y) /
    (1 - w h) the prediction without sample i. A head that is solved otherwise (from a diagonal, at
    low rank, by an iteration that stops early) needs scores of its own, and SHARPNESS of its own:
    with these, probabilities are wrong by orders of magnitude, and the accuracy hides it.

    A model of every second feature costs an eighth per trial, and so on down to 128 features, where
    the search takes place. The lambda of all features is extrapolated from the smaller models and
    not searched for; it is within a third of the best, which hardly changes predictions.
    """
    size = len(equations.gram)
    steps = [2**k for k in range(1, size.bit_length()) if size > CHEAP * 2 ** (k - 1)]
    smallest = equations.every(steps[-1]) if steps else equations
    tolerance = AROUND if steps else 0.01
    peak = maximum(lambda points: totals(smallest, points), LOWEST, HIGHEST, tolerance)
    before = peak - DRIFT if steps else peak
    for step in reversed(steps[:-1]):
        start = 2.0 * peak - before  # extrapolated to twice as many features
        before = peak
        around = torch.arange(-1.0, 2.0)
        place, _ = vertex(totals(equations.every(step), start + AROUND * around))
        peak = start + AROUND * (float(place) - 1.0)
    return equations.unit * math.exp(2.0 * peak - before)


def totals(equations: NormalEquations, points: Tensor) -> Tensor:
    """The scores for several log(lambda / unit)."""
    ridges = (points.exp() * equations.unit).to(equations.mean)
    together = max(1, _AT_ONCE // equations.gram.numel())
    parts = ridges.split(together)
    return torch.cat([score(equations, minimise(equations, some)).total for some in parts])


def solve_head(
    equations: NormalEquations, fixed: tuple[float, float] | None = None
) -> HeadPosterior:
    """The head's posterior, with alpha and 1/beta as fixed or chosen."""
    variance = equations.variance
    beta = None
    if fixed is not None:
        ridge = fixed[0] * variance * fixed[1]
        beta = 1.0 / fixed[1]
    elif equations.informative:
        ridge = choose_ridge(equations)
    else:  # one class or one sample: nothing to choose lambda by
        ridge = variance
        beta = 1.0
    best = minimise(equations, equations.mean.new_tensor([ridge]))
    scores = score(equations, best, beta)
    weight = torch.linalg.solve_triangular(best.factors[0].T, best.solved[0], upper=True)
    precision, log_evidence = torch.stack([scores.beta[0], scores.log_evidence[0]]).tolist()
    return HeadPosterior(
        weight,
        equations.target_mean - equations.mean @ weight,
        best.factors[0],
        equations.mean,
        prior_precision=ridge * precision / variance,
        noise_variance=1.0 / precision,
        log_evidence=log_evidence if equations.informative or fixed else 0.0,
        intercept_leverage=1.0 / equations.count,
        held_out=None if scores.held_out is None else scores.held_out[0],
    )


def safe_cholesky(matrices: Tensor) -> Tensor:
    """Cholesky factors of matrices `[T, M, M]`. Those that rounding made indefinite get a little
    more ridge, in place."""
    diagonal = matrices.diagonal(dim1=1, dim2=2)
    scale = diagonal.mean(1, keepdim=True).abs()
    for power in range(-13, -4):
        factors, failed = torch.linalg.cholesky_ex(matrices)
        if not failed.any():
            return factors
        diagonal += torch.where(failed.unsqueeze(1) > 0, 10.0**power * scale, 0.0)
    raise FloatingPointError(
        "the features' covariance is not positive definite even with a ridge of 1e-05 of its size: "
        "were samples forgotten that had never been learned?"
    )


def maximum(
    function: Callable[[Tensor], Tensor], low: float, high: float, tolerance: float
) -> float:
    """The maximum of a smooth function of one number, evaluated at several points at a time: on a
    grid, then on finer grids around the best point, until points are `tolerance` apart."""
    points = torch.linspace(low, high, 21, dtype=torch.float64)
    while True:
        step = float(points[1] - points[0])
        place, _ = vertex(function(points))
        peak = float(points[0]) + step * float(place)
        if step <= tolerance:
            return peak
        centre = min(max(peak, low + step), high - step)
        points = torch.linspace(centre - step, centre + step, 9, dtype=torch.float64)


def vertex(values: Tensor) -> tuple[Tensor, Tensor]:
    """The place and the height `[...]` of the maximum of values `[F, ...]` at 0, 1 to F - 1: of a
    parabola through the best inner value and its neighbours, at most 1 away."""
    best = values[1:-1].argmax(0, keepdim=True) + 1
    left, middle, right = values.gather(0, torch.cat([best - 1, best, best + 1]))
    slope = (right - left) / 2.0
    bend = (2.0 * middle - left - right).clamp(min=1e-9)
    shift = (slope / bend).clamp(-1.0, 1.0)
    return best[0] + shift, middle + slope * shift - bend * shift.square() / 2.0
