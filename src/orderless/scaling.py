"""Mean and deviation of columns, the same bits in any order, any batching and on any machines.

    mean = sum w x / sum w        scale^2 = sum w x^2 / sum w - mean^2

Sums of floats depend on the order of their terms. These sums are whole numbers: every float64 is a
multiple of 2^-1074, its square one of 2^-2148, and weights are multiples of 1/16. Mean and scale
are rounded once, when they are read.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_SMALLEST = 1074  # -log2 of the smallest float64
_BITS = 16  # of the whole numbers into which columns are split
_ROWS = 4096  # 2^12 products of 2 * 16 bits with weights of 8 bits stay below 2^53
_CONSTANT = 1e-12  # columns with a smaller deviation, relative to their mean, are not scaled
Array = NDArray[np.float64]


class ExactScaler:
    """Standardise columns without an order: `add` data, read `mean` and `scale`.

    `a + b` has the data of both. A column that is constant has the scale 1.

    >>> X = np.random.default_rng(0).normal(5.0, 2.0, size=(100, 3))
    >>> whole = ol.ExactScaler().add(X)
    >>> parts = ol.ExactScaler().add(X[60:]) + ol.ExactScaler().add(X[:60])
    >>> np.array_equal(whole.mean, parts.mean) and np.array_equal(whole.scale, parts.scale)
    True
    >>> bool(np.allclose(whole.transform(X).std(axis=0), 1.0))
    True
    """

    low: Array  # the smallest and the largest value of every column [K]
    high: Array

    def __init__(self) -> None:
        self.sixteenths = 0  # the sum of the weights times 16
        self._first: list[int] = []  # sums of w x, in units of 2^-1078
        self._second: list[int] = []  # sums of w x^2, in units of 2^-2152

    def add(self, X: Any, sample_weight: Any = None) -> Self:
        """Add rows X `[B, K]`, with weights `[B]` in multiples of 1/16 up to 16. Returns itself."""
        X = np.asarray(X, np.float64)
        if X.ndim != 2 or not np.isfinite(X).all():
            raise ValueError(f"X must hold finite numbers [B, K], got shape {list(X.shape)}")
        if self._first and X.shape[1] != len(self._first):
            raise ValueError(f"X has {X.shape[1]} columns, but had {len(self._first)} before")
        weights = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, float)
        weights = weights * 16.0
        if weights.shape != X.shape[:1] or not np.isin(weights, np.arange(257)).all():
            raise ValueError(
                "sample_weight must lie between 0 and 16 in multiples of 1/16, one per row, got "
                f"{np.asarray(sample_weight).ravel()[:5].tolist()}"
            )
        counted = weights > 0
        X = X[counted]
        weights = weights[counted]
        for start in range(0, len(X), _ROWS):
            rows = slice(start, start + _ROWS)
            self._take(_summed(X[rows], weights[rows]))
        return self

    def __add__(self, other: ExactScaler) -> Self:
        """A scaler with the data of both. Neither changes."""
        if not isinstance(other, ExactScaler):
            return NotImplemented
        if self._first and other._first and len(self._first) != len(other._first):
            raise ValueError(f"{len(self._first)} columns here, {len(other._first)} there")
        result = copy.copy(self)
        result._take(other)
        return result

    @property
    def mean(self) -> Array:
        """The weighted mean of every column `[K]`."""
        self._check_any()
        whole = self.sixteenths << _SMALLEST
        return np.array([first / whole for first in self._first])

    @property
    def scale(self) -> Array:
        """The weighted standard deviation of every column `[K]`; 1 for a constant."""
        mean = self.mean
        deviations = []
        for first, second in zip(self._first, self._second, strict=True):
            # variance = (second / w - (first / w)^2), and sqrt(variance) with 1200 binary places
            numerator = second * self.sixteenths - first**2
            denominator = self.sixteenths**2 << 2 * _SMALLEST
            deviations.append(math.isqrt((numerator << 2400) // denominator) / (1 << 1200))
        found = np.array(deviations)
        return np.where(found > _CONSTANT * np.abs(mean), found, 1.0)

    def transform(self, X: Any) -> Array:
        """(X - mean) / scale."""
        return np.asarray((np.asarray(X, np.float64) - self.mean) / self.scale)

    def _take(self, other: ExactScaler) -> None:
        if not other._first:
            return
        if not self._first:
            vars(self).update(vars(other))
            return
        self.sixteenths += other.sixteenths
        self._first = [a + b for a, b in zip(self._first, other._first, strict=True)]
        self._second = [a + b for a, b in zip(self._second, other._second, strict=True)]
        self.low = np.minimum(self.low, other.low)
        self.high = np.maximum(self.high, other.high)

    def _check_any(self) -> None:
        if not self._first:
            raise ValueError("no data has been added: a mean needs at least one row")


def _summed(X: Array, weights: Array) -> ExactScaler:
    """The sums over some rows; weights are in sixteenths."""
    made = ExactScaler()
    made.sixteenths = int(weights.sum())
    made.low = X.min(axis=0)
    made.high = X.max(axis=0)
    made._first = [0] * X.shape[1]
    made._second = [0] * X.shape[1]
    parts = _split(X)
    for s, (power, whole) in enumerate(parts):
        weighted = whole * weights[:, None]
        made._first = _plus(made._first, weighted.sum(axis=0), power)
        for t, (other, factor) in enumerate(parts[: s + 1]):
            products = np.einsum("bk,bk->k", weighted, factor)
            twice = 1 if s > t else 0
            made._second = _plus(made._second, products, power + other + twice)
    return made


def _plus(sums: list[int], values: Array, powers: NDArray[np.int64]) -> list[int]:
    """sums + values * 2^powers."""
    terms = zip(sums, values.astype(np.int64).tolist(), powers.tolist(), strict=True)
    return [total + (value << power) for total, value, power in terms]


def _split(X: Array) -> list[tuple[NDArray[np.int64], Array]]:
    """X as a sum of 2^(powers `[K]` - 1074) times whole numbers of at most 16 bits `[B, K]`."""
    parts: list[tuple[NDArray[np.int64], Array]] = []
    while X.any() or not parts:
        power = np.maximum(np.frexp(np.abs(X).max(axis=0))[1] - _BITS, -_SMALLEST)
        unit = np.ldexp(1.0, power)
        whole = np.trunc(X / unit)
        X = X - whole * unit  # exact
        parts.append((power.astype(np.int64) + _SMALLEST, whole))
    return parts
