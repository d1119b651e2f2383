"""The sufficient statistics of a linear head: sums over the data, without any rounding.

Features lie on a grid: multiples of a power of two, up to 2^bits, and weights of samples are
multiples of 1/16. So the sums are those of integers (see `words.py`). They do not depend on the
order of the samples, on batches or on machines, and samples can be removed without a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..ensemble.device import available_memory
from .leave_one_out import KeptSamples
from .targets import column_numbers, column_pairs
from .words import ROOM, ExactSum

_TILE = 512  # rows of the Gram matrix per product, about
_LARGE_TILE = 2048  # the same on a GPU, which smaller products do not fill
_FEW = 512  # columns up to which a product is the fastest way to add moments on a GPU
_ALIGNED = 8  # products are faster if the length of rows is a multiple of this


@dataclass(frozen=True)
class Units:
    """The grids of features (whole numbers up to 2^bits) and targets. The constant's is 1."""

    features: float
    targets: float
    bits: int

    @property
    def room(self) -> float:
        """The total weight of samples that can be added between two carries."""
        return ROOM / 4.0**self.bits

    @property
    def most(self) -> float:
        """The total weight that can be summed exactly: 2^44 at 16 bits."""
        return 2.0 ** (76 - 2 * self.bits)


@dataclass
class HeadStatistics:
    """The sums. N particles, M features and a constant 1 as feature M + 1, K head columns."""

    units: Units
    gram: list[ExactSum]  # Phi^T Phi of every particle: the lower triangle of [M+1, M+1]
    moments: ExactSum  # Y^T Phi: [N, K, M+1]
    squares: ExactSum  # sums of y^2: [K]
    columns: Tensor  # [K], ascending, see `column_numbers`
    samples: float = 0.0  # the sum of their weights
    clipped: float = 0.0  # values clipped by the grid
    pending: float = 0.0  # weight added to `gram` since the last carry
    kept: KeptSamples | None = None  # None if none are kept, or some are missing

    @classmethod
    def empty(cls, n: int, features: int, units: Units, device: torch.device) -> HeadStatistics:
        check_memory(n, features, device)
        size = features + 1
        scale = torch.full((size,), units.features, dtype=torch.float64, device=device)
        scale[-1] = 1.0  # the constant
        one = scale.new_tensor(units.targets)
        rows, length = scale.unsqueeze(1), size + -size % _ALIGNED
        room = [scale.new_zeros(size, length)[:, :size] for _ in range(n)]
        gram = [ExactSum(low, rows, scale) for low in room]
        moments = ExactSum(scale.new_zeros(n, 0, size), one, scale)
        columns = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(units, gram, moments, ExactSum(scale.new_zeros(0), one, one), columns)

    @property
    def features(self) -> int:
        return self.moments.low.shape[2] - 1

    @property
    def counts(self) -> Tensor:
        """Sums of squared targets per column `[K]`: for classes, their numbers of samples."""
        return self.squares.value()

    def settle(self) -> HeadStatistics:
        """Carry where needed, so that equal sums are equal words. Returns itself."""
        if self.pending and self._has_to_carry():
            self._carry()
        self.pending = 0.0
        return self

    def _carry(self) -> None:
        for particle, words in enumerate(self.gram):
            self.gram[particle] = words.carried()
        self.moments, self.squares = self.moments.carried(), self.squares.carried()
        self.pending = 0.0

    def _has_to_carry(self) -> bool:
        """No sum over data is larger than the largest square among them (Cauchy and Schwarz)."""
        squares = [*[words.diagonal() for words in self.gram], self.squares]
        if any(words.high is not None for words in [*self.gram, self.moments, self.squares]):
            return True
        return any(bool((w.low / w.rows / w.columns >= ROOM).any()) for w in squares)

    def with_columns(self, wanted: Tensor) -> HeadStatistics:
        """A copy with columns for all of `wanted`; it shares the large `gram`."""
        columns = torch.cat([self.columns, wanted.to(self.columns.device)]).unique()
        places = torch.searchsorted(columns, self.columns)

        def spread(sums: Tensor, dim: int) -> Tensor:
            shape = *sums.shape[:dim], len(columns), *sums.shape[dim + 1 :]
            return sums.new_zeros(shape).index_copy_(dim, places, sums)

        moments = self.moments.each(lambda sums: spread(sums, 1))
        squares = self.squares.each(lambda sums: spread(sums, 0))
        return replace(self, moments=moments, squares=squares, columns=columns)

    def without_empty_columns(self) -> HeadStatistics:
        """The same sums without the columns that have no samples."""
        kept = self.settle().counts != 0
        if kept.all():
            return self
        moments = self.moments.each(lambda sums: sums[:, kept]).carried()
        squares = self.squares.each(lambda sums: sums[kept]).carried()
        return replace(self, moments=moments, squares=squares, columns=self.columns[kept])

    def add(self, features: Tensor, targets: Tensor, weights: Tensor | None, sign: int) -> None:
        """Add samples, or with sign -1 remove them: features `[N, B, M]` on the grid, and targets,
        indices into `columns` `[B]` (classes) or values `[B, K]`."""
        for rows, part, mass in self._portions(features, weights):
            self._add_gram(part, mass, sign)
            self._add_moments(part, targets[rows], mass, sign)

    def add_gram(self, features: Tensor, weights: Tensor | None, sign: int) -> None:
        """Add samples to `gram` alone, also where it is not the sum over any data."""
        for _, part, mass in self._portions(features, weights):
            self._carry()
            self._add_gram(part, mass, sign)

    def _portions(
        self, features: Tensor, weights: Tensor | None
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Split samples into portions that may be added between two carries."""
        largest = 1.0 if weights is None else float(weights.max())
        size = max(1, int(self.units.room / largest))
        for start in range(0, features.shape[1], size):
            rows = slice(start, start + size)
            yield rows, features[:, rows], None if weights is None else weights[rows]

    def _add_moments(
        self, features: Tensor, targets: Tensor, weights: Tensor | None, sign: int
    ) -> None:
        mass = features.new_ones(len(targets), dtype=torch.float64) if weights is None else weights
        if targets.dim() == 1:
            self.squares.low.index_add_(0, targets, mass, alpha=sign)
            if targets.is_cuda and len(self.columns) <= _FEW:
                targets = one_hot(targets, len(self.columns)).double()
        else:
            self.squares.low.addmv_(targets.square().T, mass, alpha=sign)
        for moments, (_, weighted) in zip(self.moments.low, _rows(features, weights), strict=True):
            if targets.dim() == 1:
                moments.index_add_(0, targets, weighted, alpha=sign)
            else:
                moments.addmm_(targets.T, weighted, alpha=sign)
        self.samples += sign * (float(len(mass)) if weights is None else float(mass.sum()))

    def _add_gram(self, features: Tensor, weights: Tensor | None, sign: int) -> None:
        """Add samples to `gram`; after an error it is as before."""
        mass = float(features.shape[1]) if weights is None else float(weights.sum())
        if self.pending + mass > self.units.room:
            self.settle() if sign > 0 else self._carry()  # samples may never have been added
        self.pending += mass
        before = [words.low.diagonal().clone() for words in self.gram]
        try:
            for words, (rows, weighted) in zip(self.gram, _rows(features, weights), strict=True):
                for i, j in _tiles(words.low):
                    words.low[i:j, :j].addmm_(weighted[:, i:j].T, rows[:, :j], alpha=sign)
        except BaseException:
            # an unchanged diagonal: the product was not added, or is 0
            pairs = zip(self.gram, _rows(features, weights), before, strict=True)
            for words, (rows, weighted), diagonal in pairs:
                for i, j in _tiles(words.low):
                    if not torch.equal(words.low.diagonal()[i:j], diagonal[i:j]):
                        words.low[i:j, :j].addmm_(weighted[:, i:j].T, rows[:, :j], alpha=-sign)
            raise

    def begun(self) -> float:
        """The weight of samples that an incomplete change has added to `gram`."""
        self._carry()
        return float(self.gram[0].diagonal().value()[-1]) - self.samples

    def plus(self, other: HeadStatistics, sign: int = 1) -> HeadStatistics:
        """The sums over both data sets, or over the first without the second."""
        self.settle()
        other.settle()
        ours, theirs = self.with_columns(other.columns), other.with_columns(self.columns)
        return replace(
            ours,
            gram=[a.plus(b, sign) for a, b in zip(ours.gram, theirs.gram, strict=True)],
            moments=ours.moments.plus(theirs.moments, sign),
            squares=ours.squares.plus(theirs.squares, sign),
            samples=ours.samples + sign * theirs.samples,
            clipped=ours.clipped + sign * theirs.clipped,
            kept=self.kept.plus(other.kept, sign) if self.kept and other.kept else None,
        )

    def impossible(self) -> str | None:
        """A reason why these cannot be sums over data, or None."""
        self.settle()
        diagonals = [words.diagonal().value() for words in self.gram]
        if min(float(diagonal.min()) for diagonal in diagonals) < 0:
            return "a sum of squared features would fall below 0"
        if bool((self.counts < 0).any()):
            return "a column would have fewer than 0 samples"
        if self.clipped < 0:
            return "fewer than 0 values would be clipped"
        if self.samples == 0 and any(bool(diagonal.any()) for diagonal in diagonals):
            return "no samples but some of their features would be left"
        if bool(self.moments.value()[:, self.counts == 0].any()):
            return "a column would have no samples but some of their features"
        if self.kept is not None and bool((self.kept.weights < 0).any()):
            return "a sample would be in it fewer than 0 times"
        return None

    def state_dict(self) -> dict[str, Any]:
        self.settle()
        high, carries = None, [words.high for words in self.gram]
        if any(carry is not None for carry in carries):
            zero = torch.zeros_like(self.gram[0].low, dtype=torch.int32)
            high = torch.stack([zero if carry is None else carry.tril() for carry in carries])
        moments = self.moments.each(_transposed)
        squares = self.squares.each(torch.clone)
        return {
            "gram": torch.stack([words.low.tril() for words in self.gram]),
            "moments": moments.low,
            "squares": squares.low,
            "columns": [list(column) for column in column_pairs(self.columns)],
            "clipped": whole(self.clipped),
            "samples": whole(self.samples),
            "gram_carry": high,
            "moments_carry": moments.high,
            "squares_carry": squares.high,
            **({} if self.kept is None else self.kept.state_dict()),
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], units: Units, device: torch.device
    ) -> HeadStatistics:
        """The inverse of `state_dict`; version 0.1 had full matrices, no carries, no samples."""

        def words(like: ExactSum, name: str, change: Callable[[Tensor], Tensor]) -> ExactSum:
            return replace(like, low=state[name], high=state.get(f"{name}_carry")).each(change)

        low, high = state["gram"], state.get("gram_carry")
        made = cls.empty(len(low), low.shape[1] - 1, units, device)
        made.columns = column_numbers([(int(t), int(c)) for t, c in state["columns"]], device)
        for i, room in enumerate(made.gram):
            room.low.copy_(_in_tiles(low[i].to(device)))
            carry = None if high is None else _in_tiles(high[i].to(device))
            made.gram[i] = replace(room, high=carry)
        made.moments = words(made.moments, "moments", lambda sums: _transposed(sums.to(device)))
        made.squares = words(made.squares, "squares", lambda sums: sums.to(device, copy=True))
        made.samples, made.clipped = float(state["samples"]), float(state["clipped"])
        made.pending = units.room
        if "kept_keys" in state:
            made.kept = KeptSamples.from_state(state, device)
        return made.settle()


def check_memory(n: int, features: int, device: torch.device) -> None:
    """Raise `MemoryError` if sums, factors and a working copy `[2 N + 1, M, M]` do not fit."""
    matrices = 2 * n + 1
    needed = 8 * (features + 1) ** 2 * matrices
    available = available_memory(device)
    if available is not None and needed > available:
        fits = int((available / (8 * matrices)) ** 0.5)
        raise MemoryError(
            f"{n} particles with {features} features need {needed / 2**30:.1f} GiB of matrices but "
            f"{available / 2**30:.1f} GiB are free on {device}: use at most {fits} features, or "
            "fewer particles"
        )


def _rows(features: Tensor, weights: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Per particle: samples with the constant `[B, M + 1]`, and the same weighted; float64."""
    _, count, size = features.shape
    for values in features:
        whole = values.new_zeros(count, size + 1 + -(size + 1) % _ALIGNED, dtype=torch.float64)
        whole[:, :size] = values
        whole[:, size] = 1.0
        rows = whole[:, : size + 1]
        yield rows, rows if weights is None else (whole * weights.unsqueeze(1))[:, : size + 1]


def _tiles(matrix: Tensor) -> Iterator[tuple[int, int]]:
    """Ranges of rows (i, j); rows i to j and columns up to j cover the lower triangle. The
    constant's row is separate: products with one more row than a round number are slower."""
    size = len(matrix) - 1
    count = max(1, round(size / (_LARGE_TILE if matrix.is_cuda else _TILE)))
    inner = [_ALIGNED * round(k * size / count / _ALIGNED) for k in range(count)]
    return pairwise([*inner, size, size + 1])


def _in_tiles(matrix: Tensor) -> Tensor:
    """A symmetric matrix from its lower triangle, 0 outside of the tiles."""
    full = matrix.tril() + matrix.tril(-1).T
    for _, j in _tiles(matrix):
        full[:j, j:] = 0
    return full


def _transposed(sums: Tensor) -> Tensor:
    """A copy; `contiguous` makes none if there is one column."""
    return sums.mT.clone(memory_format=torch.contiguous_format)


def whole(value: float) -> int | float:
    """A whole number as an int."""
    return int(value) if value == int(value) else value
