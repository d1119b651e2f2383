r"""The posterior of one linear head from its sufficient statistics, and how much it explains.

With standardised features z, K' target contrasts y and the model

    y = b + W^T z + e,    W ~ N(0, 1/alpha),    e ~ N(0, 1/beta),    b flat,

let A = Z^T Z, B = Z^T Y, lambda = alpha / beta and n' = n - 1 (the intercept takes one dimension;
without standardisation there is none and n' = n). The posterior of W is N((A + lambda I)^-1 B,
(A + lambda I)^-1 / beta), and the log density of the data, the head integrated out, is

    K'/2 [M log lambda - log|A + lambda I| + n' log beta - n' log 2 pi] - beta/2 R(lambda)
    R(lambda) = tr Y^T Y - tr B^T (A + lambda I)^-1 B

For classes, targets are 0/1 columns that sum to 1, so only the K' = K - 1 orthonormal contrasts of
K columns are data; traces over them are traces over all columns less their mean entry.

Given lambda the best beta is K' n' / R, so maximising the evidence is a search over one number. One
Cholesky factorisation per trial of lambda, about a dozen trials: on a GPU that is many times faster
than one eigendecomposition, after which trials would be free (M = 2048 on two cores: the same).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_SMALLEST_NOISE = 1e-12  # noise variance of data that are explained perfectly


@dataclass(frozen=True)
class HeadPosterior:
    """One particle's head. On features phi the mean is `phi @ weight + intercept`, `[B, K]`."""

    weight: Tensor  # [M, K]
    intercept: Tensor  # [K]
    factor: Tensor  # [M, M], lower: L L^T = A + lambda I
    mean: Tensor  # [M], of the features
    inverse_scale: Tensor  # [M]; 0 for a feature that never varied
    prior_precision: float  # alpha
    noise_variance: float  # 1 / beta
    log_evidence: float
    intercept_leverage: float  # 1/n, or 0 without an intercept

    def outputs(self, features: Tensor) -> Tensor:
        """Means `[B, K]` at features `[B, M]`, float64."""
        return torch.addmm(self.intercept, features, self.weight)

    def leverage(self, features: Tensor) -> Tensor:
        """z^T (A + lambda I)^-1 z + 1/n: `[B]`; times the noise it is the head's variance there."""
        rows = (features - self.mean) * self.inverse_scale
        solved = torch.linalg.solve_triangular(self.factor, rows.T, upper=False)
        return solved.square().sum(0) + self.intercept_leverage


class Solution(NamedTuple):
    """One trial of lambda: L L^T = A + lambda I and L^-1 B, and the evidence with its beta."""

    log_evidence: float
    ratio: float
    beta: float
    factor: Tensor
    solved: Tensor


@dataclass(frozen=True)
class NormalEquations:
    """A, B and what R needs, features standardised by their own sums if so wished."""

    matrix: Tensor  # A [M, M]
    right: Tensor  # B [M, K]
    total: float  # tr Y^T Y over the contrasts
    dimensions: float  # n'
    outputs: int  # K'
    classes: bool
    standardize: bool
    mean: Tensor
    inverse_scale: Tensor
    target_mean: Tensor

    @classmethod
    def of(
        cls, gram: Tensor, moments: Tensor, squares: Tensor, *, classes: bool, standardize: bool
    ) -> NormalEquations:
        """From one particle's gram `[M+1, M+1]`, moments `[M+1, K]` and squares `[K]`."""
        count, sums, targets = gram[-1, -1], gram[-1, :-1], moments[-1]
        columns = len(targets)
        total = squares.sum()
        if not standardize:
            total = total - count / columns if classes else total
            mean, scale = torch.zeros_like(sums), torch.ones_like(sums)
            matrix, right, target_mean = gram[:-1, :-1], moments[:-1], torch.zeros_like(targets)
        else:
            mean, target_mean = sums / count, targets / count
            matrix = gram[:-1, :-1] - torch.outer(sums, mean)
            varies = matrix.diagonal() > 1e-12 * gram.diagonal()[:-1]
            scale = torch.where(varies, (matrix.diagonal() / count).rsqrt(), 0.0)
            matrix = matrix * scale.unsqueeze(1) * scale
            right = (moments[:-1] - torch.outer(mean, targets)) * scale.unsqueeze(1)
            total = total - (targets * target_mean).sum()
        dimensions = count.item() - (1 if standardize else 0)
        outputs = columns - 1 if classes else columns
        data = matrix, right, total.item(), dimensions, outputs
        return cls(*data, classes, standardize, mean, scale, target_mean)

    def explained(self, solved: Tensor) -> float:
        """tr B^T (A + lambda I)^-1 B over the contrasts, from solved = L^-1 B."""
        whole = solved.square().sum()
        if self.classes:
            whole = whole - solved.sum(1).square().sum() / solved.shape[1]
        return whole.item()

    def at(self, ratio: float, beta: float | None = None) -> Solution:
        """The evidence at lambda = `ratio` and what it is computed from; the best beta for None."""
        factor = safe_cholesky(self.matrix, ratio)
        solved = torch.linalg.solve_triangular(factor, self.right, upper=False)
        residual = max(self.total - self.explained(solved), 0.0)
        freedom = self.outputs * self.dimensions
        if beta is None:
            beta = freedom / max(residual, freedom * _SMALLEST_NOISE)
        size = len(self.matrix)
        determinant = 2.0 * factor.diagonal().log().sum().item()
        volume = size * math.log(ratio) - determinant
        scale = self.dimensions * math.log(beta / (2.0 * math.pi))
        evidence = self.outputs / 2 * (volume + scale) - beta / 2 * residual
        return Solution(evidence if self.outputs > 0 else 0.0, ratio, beta, factor, solved)

    def best(self) -> Solution:
        """Where the evidence is largest."""
        # Features have about one unit of variance per sample, so lambda is counted in samples.
        unit = max(self.matrix.diagonal().mean().item(), 1e-12)
        best: Solution | None = None

        def profile(log_ratio: float) -> float:
            nonlocal best
            trial = self.at(unit * math.exp(log_ratio))
            if best is None or trial.log_evidence > best.log_evidence:
                best = trial  # what the search ends with has been computed on the way
            return trial.log_evidence

        maximize(profile, math.log(0.1), -25.0, 15.0)
        assert best is not None
        return best


def solve_head(
    equations: NormalEquations,
    prior_precision: float | None = None,
    noise_variance: float | None = None,
) -> HeadPosterior:
    """The head's posterior; alpha and 1/beta as given, or where the evidence is largest."""
    informative = equations.outputs > 0 and equations.dimensions > 0 and equations.total > 0
    if prior_precision is not None and noise_variance is not None:
        solution = equations.at(prior_precision * noise_variance, 1.0 / noise_variance)
    elif informative:
        solution = equations.best()
    else:  # one class so far, or one sample: nothing to tell features apart by
        solution = equations.at(1.0, 1.0)._replace(log_evidence=0.0)
    log_evidence, ratio, beta, factor, solved = solution
    weight = torch.linalg.solve_triangular(factor.T, solved, upper=True)
    weight = weight * equations.inverse_scale.unsqueeze(1)
    intercept = equations.target_mean - equations.mean @ weight
    share = 1.0 / (equations.dimensions + 1) if equations.standardize else 0.0
    scaling = equations.mean, equations.inverse_scale
    hyperparameters = ratio * beta, 1.0 / beta, log_evidence, share
    return HeadPosterior(weight, intercept, factor, *scaling, *hyperparameters)


def safe_cholesky(matrix: Tensor, ridge: float) -> Tensor:
    """The factor of matrix + ridge I; a little more ridge where rounding made it indefinite."""
    scale = max(matrix.diagonal().mean().item(), ridge)
    extra = 0.0
    for _ in range(8):
        shifted = matrix.clone()
        shifted.diagonal().add_(ridge + extra)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed.item():
            return factor
        extra = max(10.0 * extra, 1e-13 * scale)
    raise FloatingPointError(
        "the features' covariance is not positive definite even with a ridge of "
        f"{extra / scale:.0e} of its size: are all features finite?"
    )


def maximize(
    function: Callable[[float], float],
    start: float,
    low: float,
    high: float,
    *,
    step: float = 1.5,
    tolerance: float = 1e-5,
) -> float:
    """Where a smooth function of one number is largest: climb to a bracket, then Brent's method."""
    middle, best = start, function(start)
    left, right = max(low, start - step), min(high, start + step)
    at_left, at_right = function(left), function(right)
    while at_left > best and left > low:
        middle, best, right, at_right = left, at_left, middle, best
        left = max(low, left - step)
        at_left = function(left)
    while at_right > best and right < high:
        middle, best, left, at_left = right, at_right, middle, best
        right = min(high, right + step)
        at_right = function(right)
    if max(at_left, at_right) > best:  # it still climbs at a bound
        return left if at_left > at_right else right
    second, third = (left, right) if at_left > at_right else (right, left)
    at_second, at_third = max(at_left, at_right), min(at_left, at_right)
    previous = last = right - left
    for _ in range(60):
        if right - left < tolerance:
            break
        p, q = (middle - second) * (best - at_third), (middle - third) * (best - at_second)
        bottom = 2.0 * (p - q)
        top = (middle - second) * p - (middle - third) * q
        move = -top / bottom if bottom != 0.0 else math.inf
        if abs(move) < tolerance:  # the parabola through the best three points peaks here
            break
        if not (left < middle + move < right) or abs(move) > abs(previous) / 2:
            move = 0.381966 * ((right if middle - left < right - middle else left) - middle)
        previous, last = last, move
        trial = middle + move
        value = function(trial)
        if value > best:
            left, right = (middle, right) if trial > middle else (left, middle)
            third, at_third, second, at_second = second, at_second, middle, best
            middle, best = trial, value
        else:
            left, right = (left, trial) if trial > middle else (trial, right)
            if value > at_second:
                third, at_third, second, at_second = second, at_second, trial, value
            elif value > at_third:
                third, at_third = trial, value
    return middle
