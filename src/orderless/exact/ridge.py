"""Posteriors of linear heads from their sums, and the choice of the ridge.

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
K columns are data; traces over them are traces over all columns less their mean entry. Given lambda
the best beta is K' n' / R, so a search over one number remains: see `choose_ridge`.

Several lambdas are tried at a time, and only their scores leave the device: a GPU would otherwise
wait for Python most of the time. Each head is solved separately, so that its bits do not depend on
the number of heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .held_out import HeldOut

# Every number that was set by hand to choose the ridge and the temperature.

# the ridge lambda
EVIDENCE = 200.0  # the weight of the evidence per sample and output, in samples held out
CHEAP = 128  # features; trials of such a model are cheap
AROUND = 0.5  # between trials of log lambda near the maximum
DRIFT = 0.4  # the usual change of log lambda when features double
FIRST_RIDGE = 0.1  # where the search starts, in units of the features' mean square
SMALLEST_NOISE = 1e-12  # noise variance of data with a perfect fit

# the temperature of probabilities: the sharpness is its inverse
SHARPNESS = 2.2  # the best value on most data lies between 1.5 and 3
DEVIATION = 0.4  # of the logarithm of the sharpness, under its prior
STEP = 0.35  # of that logarithm, when trials of lambda are compared
STEPS = 4  # to either side

_EACH_SIDE = 4  # points on each side of the centre
_EACH_SIDE = 4  # points of a search on each side of its centre
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
    intercept_leverage: float  # 1/n, or 0 without an intercept
    held_out: Tensor | None  # [S, K], leave-one-out scores of the kept samples

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
    """What the sums say about a head; `standardize` centres the features."""

    gram: Tensor  # [M, M], its lower triangle, before centring
    right: Tensor  # B [M, K]
    total: float  # tr Y^T Y over the contrasts
    count: float  # n
    dimensions: float  # n'
    outputs: int  # K'
    classes: bool
    standardize: bool
    mean: Tensor  # [M]
    target_mean: Tensor  # [K]
    held: HeldOut | None = None
    rows: Tensor | None = None  # [S, M], centred features of the samples held out

    @classmethod
    def of(
        cls,
        gram: Tensor,
        moments: Tensor,
        squares: Tensor,
        *,
        classes: bool,
        standardize: bool,
        constant: float = 1.0,
    ) -> NormalEquations:
        """From gram `[M+1, M+1]` (its lower triangle), moments `[K, M+1]` and squares `[K]`, where
        the last feature is constant."""
        count = gram[-1, -1] / constant**2
        sums = gram[-1, :-1] / constant
        targets = moments[:, -1] / constant
        right = moments[:, :-1].T
        columns = len(targets)
        total = squares.sum()
        if standardize:
            mean = sums / count
            target_mean = targets / count
            right = right - mean.unsqueeze(1) * targets
            total = total - (targets * target_mean).sum()
        else:
            mean = torch.zeros_like(sums)
            target_mean = torch.zeros_like(targets)
            total = total - count / columns if classes else total
        return cls(
            gram[:-1, :-1],
            right,
            total.item(),
            count.item(),
            count.item() - standardize,
            columns - 1 if classes else columns,
            classes,
            standardize,
            mean,
            target_mean,
        )

    @property
    def intercept_leverage(self) -> float:
        return self.standardize / self.count

    @property
    def unit(self) -> float:
        """The unit of lambda: the mean diagonal of A, or n if no feature varies."""
        squares = self.gram.diagonal()
        centred = squares - self.count * self.mean.square()
        size, rounding = torch.stack([centred.mean(), 1e-12 * squares.mean()]).tolist()
        return size if size > rounding else self.count

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


@dataclass(frozen=True)
class Minimisers:
    """For T lambdas the W that minimises |Y - Z W|^2 + lambda |W|^2, as two factors: L^T W = S."""

    ridges: Tensor  # [T]
    factors: Tensor  # L [T, M, M], L L^T = A + lambda I
    solved: Tensor  # S = L^-1 B [T, M, K]


def minimise(equations: NormalEquations, ridges: Tensor) -> Minimisers:
    """Solve for several lambdas `[T]`."""
    factors = safe_cholesky(equations.matrix, ridges)
    solved = torch.linalg.solve_triangular(factors, equations.right, upper=False)
    return Minimisers(ridges, factors, solved)


@dataclass(frozen=True)
class Scores:
    """How probable the data are under T lambdas."""

    log_evidence: Tensor  # [T]
    beta: Tensor  # [T]
    held_out: Tensor | None  # [T, S, K], leave-one-out scores
    total: Tensor  # [T], to be maximised


def score(equations: NormalEquations, trials: Minimisers, beta: float | None = None) -> Scores:
    """Score minimisers, under the best beta of each unless it is given."""
    explained = trials.solved.square().sum((1, 2))
    if equations.classes:  # over the contrasts of the columns
        columns = trials.solved.shape[2]
        explained = explained - trials.solved.sum(2).square().sum(1) / columns
    freedom = equations.outputs * equations.dimensions
    residual = (equations.total - explained).clamp(min=0.0)
    precision = freedom / residual.clamp(min=freedom * SMALLEST_NOISE)
    if beta is not None:
        precision = torch.full_like(precision, beta)
    roots = trials.factors.diagonal(dim1=1, dim2=2).log().sum(1)
    volume = trials.factors.shape[1] * trials.ridges.log() - 2.0 * roots
    scale = equations.dimensions * (precision / (2.0 * math.pi)).log()
    evidence = equations.outputs / 2 * (volume + scale) - precision / 2 * residual
    if equations.outputs == 0:
        evidence = torch.zeros_like(evidence)
    total = EVIDENCE * evidence / max(freedom, 1.0)
    held = equations.held
    if held is None or equations.rows is None:
        return Scores(evidence, precision, None, total)
    rows = torch.linalg.solve_triangular(trials.factors, equations.rows.T, upper=False)
    leverage = rows.square().sum(1) + equations.intercept_leverage
    outputs = rows.mT @ trials.solved + equations.target_mean
    held_out = held.scores(outputs, leverage, 1.0 / precision)
    return Scores(evidence, precision, held_out, total + held.judge(held_out))


def choose_ridge(equations: NormalEquations) -> float:
    """The lambda with the best score: the likelihood of the samples held out, with the evidence as
    prior, or the evidence alone if there are none.

    Assumes that W minimises |Y - Z W|^2 + lambda |W|^2 for the very A, B and lambda of the sums.
    Only then is tr B^T (A + lambda I)^-1 B the explained sum of squares, and (f_i - w h y) /
    (1 - w h) the prediction without sample i. A head that is solved otherwise (from a diagonal, at
    low rank, by an iteration that stops early) needs scores of its own: with these, probabilities
    are wrong by orders of magnitude, and the accuracy hides it.

    A model of every second feature costs an eighth per trial, and so on down to 128 features, where
    the search takes place. The lambda of all features is extrapolated from the smaller models and
    not searched for; it is within a third of the best, which hardly changes predictions.
    """
    size = len(equations.gram)
    steps = [2**k for k in range(1, size.bit_length()) if size > CHEAP * 2 ** (k - 1)]
    if not steps:
        return equations.unit * math.exp(_search(equations, 0.01))
    peak = _search(equations.every(steps[-1]), AROUND)
    before = peak - DRIFT
    for step in reversed(steps[:-1]):
        start = 2.0 * peak - before  # extrapolated to twice as many features
        points = torch.tensor([start - AROUND, start, start + AROUND], dtype=torch.float64)
        values = _totals(equations.every(step))(points).tolist()
        before = peak
        peak = start + AROUND * vertex(*values)
    return equations.unit * math.exp(2.0 * peak - before)


def _search(equations: NormalEquations, tolerance: float) -> float:
    """The best log(lambda / unit), by a global search."""
    start = math.log(FIRST_RIDGE)
    return maximize(_totals(equations), start, -25.0, 15.0, width=5.0, tolerance=tolerance)


def _totals(equations: NormalEquations) -> Callable[[Tensor], Tensor]:
    """The scores as a function of several log(lambda / unit)."""
    unit = equations.unit
    together = max(1, _AT_ONCE // equations.gram.numel())

    def totals(points: Tensor) -> Tensor:
        ridges = (points.exp() * unit).to(equations.mean)
        parts = []
        for some in ridges.split(together):
            parts.append(score(equations, minimise(equations, some)).total)
        return torch.cat(parts)

    return totals


def solve_head(
    equations: NormalEquations,
    prior_precision: float | None = None,
    noise_variance: float | None = None,
) -> HeadPosterior:
    """The head's posterior, with alpha and 1/beta as given or chosen."""
    variance = equations.variance
    known = prior_precision is not None and noise_variance is not None
    beta = None
    if prior_precision is not None and noise_variance is not None:
        ridge = prior_precision * variance * noise_variance
        beta = 1.0 / noise_variance
    elif equations.informative:
        ridge = choose_ridge(equations)
    else:  # one class or one sample: nothing to choose lambda by
        ridge = variance
        beta = 1.0
    ridges = equations.mean.new_tensor([ridge])
    best = minimise(equations, ridges)
    scores = score(equations, best, beta)
    factor = best.factors[0]
    weight = torch.linalg.solve_triangular(factor.T, best.solved[0], upper=True)
    precision, log_evidence = torch.stack([scores.beta[0], scores.log_evidence[0]]).tolist()
    return HeadPosterior(
        weight,
        equations.target_mean - equations.mean @ weight,
        factor,
        equations.mean,
        prior_precision=ridge * precision / variance,
        noise_variance=1.0 / precision,
        log_evidence=log_evidence if equations.informative or known else 0.0,
        intercept_leverage=equations.intercept_leverage,
        held_out=None if scores.held_out is None else scores.held_out[0],
    )


def safe_cholesky(matrix: Callable[[], Tensor], ridges: Tensor) -> Tensor:
    """Cholesky factors of A + lambda I for T lambdas `[T, M, M]`, with a little more ridge if
    rounding made one indefinite. `matrix` makes a copy of A, which is overwritten."""
    extra = torch.zeros_like(ridges)
    for _ in range(8):
        shifted = matrix().unsqueeze(0)
        if len(ridges) > 1:
            shifted = shifted.repeat(len(ridges), 1, 1)
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


def maximize(
    function: Callable[[Tensor], Tensor],
    centre: float,
    low: float,
    high: float,
    *,
    width: float,
    tolerance: float,
) -> float:
    """The maximum of a smooth function of one number, evaluated at several points at a time.

    Evaluate points within `centre` +- `width`, then closer around the best of them, until they are
    `tolerance` apart; finally fit a parabola through the best three. While an outermost point is
    the best, move there, within `low` and `high`.
    """
    offsets = torch.arange(-_EACH_SIDE, _EACH_SIDE + 1, dtype=torch.float64)
    while True:
        centre = min(max(centre, low + width), high - width)
        step = width / _EACH_SIDE
        values = function(centre + step * offsets).tolist()
        best = values.index(max(values))
        inside = 0 < best < len(values) - 1
        centre += (best - _EACH_SIDE) * step
        if inside:
            centre += step * vertex(*values[best - 1 : best + 2])
        if inside or not low + 1e-9 < centre < high - 1e-9:
            if step <= tolerance:
                return centre
            width = step


def vertex(left: float, middle: float, right: float) -> float:
    """The maximum of the parabola through values at -1, 0 and 1, at most 1 away."""
    bend = left - 2.0 * middle + right
    if bend >= 0.0:
        return float(right > left) - float(right < left)
    return min(max(0.5 * (left - right) / bend, -1.0), 1.0)
