"""Sums without rounding in two words: a float64, and an integer for what exceeds its range.

    sum = low + high * word,    -word / 2 <= low < word / 2

`word` is 2^49 units, the unit a power of two. Terms are multiples of a sixteenth of a unit, so that
float64 represents every low word up to 2^49 units exactly: half of that is the low word's range,
the other half is room for terms added since the last carry. Equal sums have equal words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

WORD = 2.0**49  # in units
ROOM = 2.0**48  # in units: the most that may be added between two carries


@dataclass(frozen=True)
class ExactSum:
    """A tensor of sums. The unit of an entry is `rows * columns`, both broadcastable to `low`."""

    low: Tensor
    rows: Tensor
    columns: Tensor
    high: Tensor | None = None  # int32; None if all of it is 0, to save memory

    def plus(self, other: ExactSum, sign: int = 1) -> ExactSum:
        """self + sign * other, carried; both must be carried."""
        low = torch.add(self.low, other.low.to(self.low.device), alpha=sign)
        high = self.high
        if other.high is not None:
            theirs = other.high.to(low.device)
            high = sign * theirs if high is None else torch.add(high, theirs, alpha=sign)
        return replace(self, low=low, high=high).carried()

    def carried(self) -> ExactSum:
        """The same sums with the low words in their range."""
        scaled = self.low / (WORD * self.rows) / self.columns
        carry = (scaled + 0.5).floor_()
        high = carry.to(torch.int32)
        if self.high is not None:
            high += self.high
        if not high.any() and not carry.any():
            return self if self.high is None else replace(self, high=None)
        low = self.low - carry.mul_(WORD * self.rows).mul_(self.columns)
        return replace(self, low=low, high=high if high.any() else None)

    def value(self) -> Tensor:
        """The sums as float64; beyond 2^53 units they are rounded, each on its own."""
        if self.high is None:
            return self.low
        return self.low + self.high * (WORD * self.rows) * self.columns

    def diagonal(self) -> ExactSum:
        """The diagonal of matrices whose rows and columns have the same units."""
        high = None if self.high is None else self.high.diagonal()
        return ExactSum(self.low.diagonal(), self.columns, self.columns, high)

    def each(self, change: Callable[[Tensor], Tensor]) -> ExactSum:
        """Apply a function to both words."""
        high = None if self.high is None else change(self.high)
        return replace(self, low=change(self.low), high=high)
