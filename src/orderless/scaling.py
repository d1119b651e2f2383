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

    low: Any = np.inf  # the smallest and the largest value of every column [K]
    high: Any = -np.inf
    sixteenths: int = 0  # the sum of the weights times 16
    _first: Any = 0  # sums of w x, in units of 2^-1078: Python's whole numbers [K]
    _second: Any = 0  # sums of w x^2, in units of 2^-2152

    def add(self, X: Any, sample_weight: Any = None) -> Self:
        """Add rows X `[B, K]`, with weights `[B]` in multiples of 1/16 up to 16. Returns itself."""
        X = np.asarray(X, np.float64)
        if X.ndim != 2 or not np.isfinite(X).all():
            raise ValueError(f"X must hold finite numbers [B, K], got shape {list(X.shape)}")
        given = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, float)
        weights = 16.0 * given
        if weights.shape != X.shape[:1] or not np.isin(weights, np.arange(257)).all():
            raise ValueError(
                "sample_weight must lie between 0 and 16 in multiples of 1/16, one per row, got "
                f"{given.ravel()[:5].tolist()}"
            )
        for start in range(0, len(X), _ROWS):
            rows = slice(start, start + _ROWS)
            self._take(_summed(X[rows], weights[rows]))
        return self

    def __add__(self, other: ExactScaler) -> Self:
        """A scaler with the data of both. Neither changes."""
        if not isinstance(other, ExactScaler):
            return NotImplemented
        result = copy.copy(self)
        result._take(other)
        return result

    @property
    def mean(self) -> Array:
        """The weighted mean of every column `[K]`."""
        if not self.sixteenths:
            raise ValueError("no data has been added: a mean needs at least one row")
        return np.asarray(self._first / (self.sixteenths << _SMALLEST), np.float64)

    @property
    def scale(self) -> Array:
        """The weighted standard deviation of every column `[K]`; 1 for a constant."""
        mean = self.mean
        # variance = second / w - (first / w)^2, and sqrt(variance) with 1200 binary places
        numerator = self._second * self.sixteenths - self._first**2
        denominator = self.sixteenths**2 << 2 * _SMALLEST
        squares = (numerator << 2400) // denominator
        deviations = np.array([math.isqrt(square) / (1 << 1200) for square in squares])
        return np.where(deviations > _CONSTANT * np.abs(mean), deviations, 1.0)

    def transform(self, X: Any) -> Array:
        """(X - mean) / scale."""
        return np.asarray((np.asarray(X, np.float64) - self.mean) / self.scale)

    def _take(self, other: ExactScaler) -> None:
        if self.sixteenths and other.sixteenths and len(self._first) != len(other._first):
            raise ValueError(
                f"{len(other._first)} columns cannot be added to {len(self._first)} columns"
            )
        self.sixteenths += other.sixteenths
        self._first = self._first + other._first
        self._second = self._second + other._second
        self.low = np.minimum(self.low, other.low)
        self.high = np.maximum(self.high, other.high)


def _summed(X: Array, weights: Array) -> ExactScaler:
    """The sums over some rows; weights are in sixteenths."""
    sums = ExactScaler()
    sums.sixteenths = int(weights.sum())
    sums.low = X[weights > 0].min(axis=0, initial=np.inf)
    sums.high = X[weights > 0].max(axis=0, initial=-np.inf)
    sums._first = np.zeros(X.shape[1], object)
    sums._second = np.zeros(X.shape[1], object)
    parts = _split(X)
    for power, whole in parts:
        weighted = whole * weights[:, None]
        sums._first = sums._first + (_whole(weighted.sum(axis=0)) << power)
        for other, factor in parts:
            products = np.einsum("bk,bk->k", weighted, factor)
            sums._second = sums._second + (_whole(products) << power + other)
    return sums


def _split(X: Array) -> list[tuple[NDArray[Any], Array]]:
    """X as a sum of 2^(powers `[K]` - 1074) times whole numbers of at most 16 bits `[B, K]`."""
    parts = []
    while X.any():
        power = np.maximum(np.frexp(np.abs(X).max(axis=0))[1] - _BITS, -_SMALLEST)
        unit = np.ldexp(1.0, power)
        whole = np.trunc(X / unit)
        X = X - whole * unit  # exact
        parts.append((_whole(power + _SMALLEST), whole))
    return parts


def _whole(values: NDArray[Any]) -> NDArray[Any]:
    """Values as Python's whole numbers, which have no largest one."""
    return values.astype(np.int64).astype(object)
