"""Sums of real numbers that do not depend on the order of additions and subtractions.

A number is rounded once, to a multiple of 2^-60, and stored in two float64 words: `high`, a
multiple of 2^-11, and `low`, a multiple of 2^-60 in [0, 2^-11). Both words add without rounding
while the total stays below 2^41, and the pair is unique: equal totals have equal bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

COARSE, FINE = 2.0**-11, 2.0**-60
LIMIT = 2.0**41


@dataclass(frozen=True)
class ExactSum:
    """`high + low`, two float64 tensors of one shape."""

    high: Tensor
    low: Tensor

    @classmethod
    def of(cls, values: Tensor) -> ExactSum:
        """Round numbers to the grid. Raise `ValueError` if one is not finite or too large."""
        # beyond 2^-7 every float64 is a multiple of 2^-60 already, and round does not change it
        return cls(torch.zeros_like(values), (values / FINE).round_().mul_(FINE)).carried()

    def carried(self) -> ExactSum:
        """The same numbers with `low` in [0, 2^-11), checked to be small enough to be exact."""
        carry = (self.low / COARSE).floor_().mul_(COARSE)
        high = self.high + carry
        largest = float(high.abs().max()) if high.numel() else 0.0
        if not largest < LIMIT:
            raise ValueError(
                f"the sums over tasks must be finite and below {LIMIT:.1e}, got {largest:g}: "
                "scale the inputs, or lower the learning rate"
            )
        return ExactSum(high, self.low - carry)

    def __add__(self, other: ExactSum) -> ExactSum:
        return ExactSum(self.high + other.high, self.low + other.low).carried()

    def __sub__(self, other: ExactSum) -> ExactSum:
        return ExactSum(self.high - other.high, self.low - other.low).carried()

    @property
    def value(self) -> Tensor:
        """The sum as float64, rounded once."""
        return self.high + self.low

    def map(self, function: Callable[[Tensor], Tensor]) -> ExactSum:
        return ExactSum(function(self.high), function(self.low))
