r"""The posteriors of linear heads from their sufficient statistics, and how much they explain.

With standardised features z, K' target contrasts y and the model

    y = b + W^T z + e,    W ~ N(0, 1/alpha),    e ~ N(0, 1/beta),    b flat,

let A = Z^T Z, B = Z^T Y, lambda = alpha / beta and n' = n - 1 (the intercept takes one dimension;
without standardisation there is none and n' = n). The posterior of W is N((A + lambda I)^-1 B,
(A + lambda I)^-1 / beta), and the log density of the data, the head integrated out, is

    K'/2 [M log lambda - log|A + lambda I| + n' log beta - n' log 2 pi] - beta/2 R(lambda)
    R(lambda) = tr Y^T Y - tr B^T (A + lambda I)^-1 B

For classes, targets are 0/1 columns that sum to 1, so only the K' = K - 1 orthonormal contrasts of
K columns are data; traces over them are traces over all columns less their mean entry.

Given lambda the best beta is K' n' / R, so what is left is a search over one number, with one
Cholesky factorisation per trial of lambda. What the search maximises is the evidence or, where
samples are kept, mostly their leave-one-out likelihood: see `leave_one_out.py`. Every second
feature makes a model of its own, a trial of which costs an eighth, and so on down to 128 features:
the search is done there. The whole model is solved once, where the smaller ones point to; lambda is
right within a third, which no prediction notices.
Heads search side by side: the trials of all of them are factorised as one batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .leave_one_out import PRIOR, HeldOut
from .line_search import climb

_CHEAP = 128  # features of which a trial costs next to nothing
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
    mean_leverage: float  # of the samples learned: how many parameters they determine, per sample
    held_out: Tensor | None  # [S, K], leave-one-out scores of the samples that are kept

    def outputs(self, features: Tensor) -> Tensor:
        """Means `[B, K]` at features `[B, M]`, float64."""
        return torch.addmm(self.intercept, features, self.weight)

    def leverage(self, features: Tensor) -> Tensor:
        """z^T (A + lambda I)^-1 z + 1/n: `[B]`; times the noise it is the head's variance there."""
        rows = (features - self.mean) * self.inverse_scale
        solved = torch.linalg.solve_triangular(self.factor, rows.T, upper=False)
        return solved.square().sum(0) + self.intercept_leverage


class Solution(NamedTuple):
    """One trial of lambda: L L^T = A + lambda I and L^-1 B, and how good it is."""

    score: float
    log_evidence: float
    ratio: float
    beta: float
    held_out: Tensor | None
    factor: Tensor
    solved: Tensor

    def kept(self) -> Solution:
        """Without the rest of the batch that it is a part of."""
        return self._replace(factor=self.factor.clone(), solved=self.solved.clone())


@dataclass(frozen=True)
class NormalEquations:
    """A, B and what R needs of n heads, features standardised by their own sums if so wished."""

    matrix: Tensor  # A [n, M, M], its lower triangle
    right: Tensor  # B [n, M, K]
    total: float  # tr Y^T Y over the contrasts
    dimensions: float  # n'
    outputs: int  # K'
    classes: bool
    standardize: bool
    mean: Tensor  # [n, M]
    inverse_scale: Tensor  # [n, M]
    target_mean: Tensor  # [K]
    held: HeldOut | None = None
    rows: Tensor | None = None  # [n, S, M], standardised features of the samples held out

    @classmethod
    def of(
        cls, gram: Tensor, moments: Tensor, squares: Tensor, *, classes: bool, standardize: bool
    ) -> NormalEquations:
        """From gram `[n, M+1, M+1]` (its lower triangle), moments `[n, K, M+1]`, squares `[K]`."""
        count, sums, targets = gram[0, -1, -1], gram[:, -1, :-1], moments[0, :, -1]
        columns = len(targets)
        total = squares.sum()
        if not standardize:
            total = total - count / columns if classes else total
            mean, scale = torch.zeros_like(sums), torch.ones_like(sums)
            matrix, right = gram[:, :-1, :-1].clone(), moments[:, :, :-1].mT
            target_mean = targets * 0.0
        else:
            mean, target_mean = sums / count, targets / count
            matrix = gram[:, :-1, :-1] - sums.unsqueeze(2) * mean.unsqueeze(1)
            varies = _diagonal(matrix) > 1e-12 * _diagonal(gram)[:, :-1]
            scale = torch.where(varies, (_diagonal(matrix) / count).rsqrt(), 0.0)
            matrix *= scale.unsqueeze(2)
            matrix *= scale.unsqueeze(1)
            right = moments[:, :, :-1].mT - mean.unsqueeze(2) * targets
            right = right * scale.unsqueeze(2)
            total = total - (targets * target_mean).sum()
        dimensions = count.item() - (1 if standardize else 0)
        outputs = columns - 1 if classes else columns
        data = matrix, right, total.item(), dimensions, outputs
        return cls(*data, classes, standardize, mean, scale, target_mean)

    def judged_by(self, held: HeldOut, features: Tensor) -> NormalEquations:
        """To be judged by samples with features `[n, S, M]`."""
        rows = (features - self.mean.unsqueeze(1)) * self.inverse_scale.unsqueeze(1)
        return replace(self, held=held, rows=rows)

    @property
    def intercept_leverage(self) -> float:
        return 1.0 / (self.dimensions + 1) if self.standardize else 0.0

    @property
    def informative(self) -> bool:
        return self.outputs > 0 and self.dimensions > 0 and self.total > 0

    def over_contrasts(self, rows: Tensor) -> Tensor:
        """The sum of squares of `[M, K]` over the contrasts of the K columns."""
        squares = rows.square().sum()
        return squares - rows.sum(1).square().sum() / rows.shape[1] if self.classes else squares

    def at(
        self, heads: list[int], ratios: list[float], beta: float | None = None, last: bool = False
    ) -> list[Solution]:
        """Some heads, each at its own lambda; the best beta of each for None. The `last` trial, of
        all heads, needs no copy of the matrices: it overwrites them."""
        chosen = torch.tensor(heads, device=self.matrix.device)
        right = self.right.index_select(0, chosen)
        factors = safe_cholesky(
            self.matrix if last else self.matrix.index_select(0, chosen), ratios
        )
        solved = torch.linalg.solve_triangular(factors, right, upper=False)
        # Head by head: a sum's last bits must not depend on how many heads there are.
        explained = torch.stack([self.over_contrasts(part) for part in solved]).tolist()
        roots = torch.stack([factor.diagonal().log().sum() for factor in factors]).tolist()
        freedom, size = self.outputs * self.dimensions, self.matrix.shape[1]
        found = []
        for i, (head, ratio) in enumerate(zip(heads, ratios, strict=True)):
            residual = max(self.total - explained[i], 0.0)
            noise = beta or freedom / max(residual, freedom * _SMALLEST_NOISE)
            volume = size * math.log(ratio) - 2.0 * roots[i]
            scale = self.dimensions * math.log(noise / (2.0 * math.pi))
            evidence = self.outputs / 2 * (volume + scale) - noise / 2 * residual
            evidence = evidence if self.outputs > 0 else 0.0
            score = PRIOR * evidence / max(freedom, 1.0)
            scores = self._held_out(head, factors[i], solved[i], noise)
            if self.held is not None and scores is not None:
                score += self.held.judge(scores.unsqueeze(0), scores.new_ones(1))[0]
            trial = score, evidence, ratio, noise, scores
            found.append(Solution(*trial, factors[i], solved[i]))
        return found

    def _held_out(self, head: int, factor: Tensor, solved: Tensor, beta: float) -> Tensor | None:
        """Leave-one-out scores `[S, K]`."""
        if self.held is None or self.rows is None:
            return None
        rows = torch.linalg.solve_triangular(factor, self.rows[head].T, upper=False)
        leverage = rows.square().sum(0) + self.intercept_leverage
        return self.held.scores(rows.T @ solved + self.target_mean, leverage, 1.0 / beta)

    def best(self) -> list[Solution]:
        """Each head where it is best, as far as fewer of its features can tell."""
        steps = [1]
        while self.matrix.shape[1] // steps[-1] > _CHEAP:
            steps.append(2 * steps[-1])
        peaks = [math.log(0.1) for _ in self.matrix]
        before: list[float] = []
        for number, step in enumerate(reversed(steps)):
            part = self if step == 1 else self._every(step)
            units = part._units()
            if step == 1 and number > 1:
                ratios = [unit * math.exp(peak) for unit, peak in zip(units, peaks, strict=True)]
                return self.at(list(range(len(ratios))), ratios, last=True)
            found = part._search(peaks) if number == 0 else part._search(peaks, 0.5, 0.05, trials=2)
            now = [math.log(s.ratio / unit) for s, unit in zip(found, units, strict=True)]
            # where the peak goes as features double; at first, as far as it usually goes
            before = before or [peak - 0.4 for peak in now]
            peaks = [2.0 * t - b for t, b in zip(now, before, strict=True)]
            before = now
        return found

    def _every(self, step: int) -> NormalEquations:
        """A model of every `step`-th feature."""
        matrix, right = self.matrix[:, ::step, ::step], self.right[:, ::step]
        rows = None if self.rows is None else self.rows[:, :, ::step]
        return replace(self, matrix=matrix, right=right, rows=rows)

    def _units(self) -> list[float]:
        """Features have about one unit of variance per sample: lambda is counted in samples."""
        return [max(part.diagonal().mean().item(), 1e-12) for part in self.matrix]

    def _search(
        self, starts: list[float], step: float = 1.5, tolerance: float = 1e-5, trials: int = 60
    ) -> list[Solution]:
        """Each head's best lambda, its logarithm near `starts`."""
        units, options = self._units(), {"step": step, "tolerance": tolerance}
        searches = [climb(start, -25.0, 15.0, **options, trials=trials) for start in starts]
        points = {head: next(search) for head, search in enumerate(searches)}
        best: dict[int, Solution] = {}
        while points:
            heads = list(points)
            ratios = [units[head] * math.exp(points[head]) for head in heads]
            for head, found in zip(heads, self.at(heads, ratios), strict=True):
                if head not in best or found.score > best[head].score:
                    # what the search ends with has been computed on the way
                    best[head] = found if len(heads) == 1 else found.kept()
                try:
                    points[head] = searches[head].send(found.score)
                except StopIteration:
                    del points[head]
        return [best[head] for head in range(len(units))]


def solve_heads(
    equations: NormalEquations,
    prior_precision: float | None = None,
    noise_variance: float | None = None,
) -> list[HeadPosterior]:
    """The heads' posteriors; alpha and 1/beta as given, or where the evidence is largest."""
    every = list(range(len(equations.matrix)))
    if prior_precision is not None and noise_variance is not None:
        ratios = [prior_precision * noise_variance for _ in every]
        solutions = equations.at(every, ratios, 1.0 / noise_variance, last=True)
    elif equations.informative:
        solutions = equations.best()
    else:  # one class so far, or one sample: nothing to tell features apart by
        flat = equations.at(every, [1.0 for _ in every], 1.0)
        solutions = [solution._replace(log_evidence=0.0) for solution in flat]
    return [_posterior(equations, head, solutions[head]) for head in every]


def _posterior(equations: NormalEquations, head: int, solution: Solution) -> HeadPosterior:
    _, log_evidence, ratio, beta, held_out, factor, solved = solution
    mean, inverse_scale = equations.mean[head], equations.inverse_scale[head]
    weight = torch.linalg.solve_triangular(factor.T, solved, upper=True)
    weight = weight * inverse_scale.unsqueeze(1)
    intercept = equations.target_mean - mean @ weight
    # M - lambda tr (A + lambda I)^-1 parameters are determined by the data
    probes = torch.linalg.solve_triangular(factor, _signs(len(factor)).to(factor), upper=False)
    parameters = len(factor) - ratio * probes.square().sum().item() / probes.shape[1]
    share, most = equations.intercept_leverage, 0.999 * equations.dimensions
    leverage = share + min(max(parameters, 0.0), most) / max(equations.dimensions, 1.0)
    hyperparameters = ratio * beta, 1.0 / beta, log_evidence, share, min(leverage, 0.999)
    return HeadPosterior(weight, intercept, factor, mean, inverse_scale, *hyperparameters, held_out)


@lru_cache(maxsize=4)
def _signs(size: int) -> Tensor:
    """Random signs `[M, 32]`, always the same: the trace of B is about the mean of u^T B u."""
    generator = torch.Generator().manual_seed(0x0FDE)
    return torch.randint(2, (size, 32), generator=generator) * 2.0 - 1.0


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2)


def safe_cholesky(matrices: Tensor, ridges: list[float]) -> Tensor:
    """Factors of matrix + ridge I `[n, M, M]`; a little more ridge where rounding made one
    indefinite. Overwrites the matrices.
    """
    ridge = matrices.new_tensor(ridges)
    scale = torch.maximum(_diagonal(matrices).mean(1), ridge)
    _diagonal(matrices).add_(ridge.unsqueeze(1))
    extra = torch.zeros_like(scale)
    for _ in range(8):
        factors, failed = torch.linalg.cholesky_ex(matrices)
        if not failed.any():
            return factors
        more = torch.where(extra > 0, 9.0 * extra, 1e-13 * scale) * (failed != 0)
        _diagonal(matrices).add_(more.unsqueeze(1))
        extra += more
    raise FloatingPointError(
        "the features' covariance is not positive definite even with a ridge of "
        f"{(extra / scale).max().item():.0e} of its size: are all features finite?"
    )
