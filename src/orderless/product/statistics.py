"""The sums over finished tasks: G_t, G_t W_t and a few numbers, all independent of the order.

A number is rounded once, to a multiple of 2^-60, and stored in two float64 words: `high`, a
multiple of 2^-11, and `low`, a multiple of 2^-60 in [0, 2^-11). Both words add without rounding
while the total stays below 2^41, and the pair is unique: equal totals have equal bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..ensemble.stacking import check_same_shapes
from .layers import Layer

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

    def plus(self, other: ExactSum, sign: int = 1) -> ExactSum:
        """self + sign * other."""
        high, low = self.high + sign * other.high, self.low + sign * other.low
        return ExactSum(high, low).carried()

    @property
    def value(self) -> Tensor:
        """The sum as float64, rounded once."""
        return self.high + self.low

    def map(self, function: Callable[[Tensor], Tensor]) -> ExactSum:
        return ExactSum(function(self.high), function(self.low))


@dataclass(frozen=True)
class LayerSums:
    """sum_t G_t and sum_t G_t W_t of one layer.

    A task whose loss does not depend on an output column adds nothing to it, so columns may have
    seen different tasks: column k has `grams[parts[k]]`. Columns with equal sums share a part.
    """

    parts: tuple[int, ...]  # numbered by their first column
    grams: ExactSum  # [P, N, g, d, d]
    cross: ExactSum  # [N, g, d, K]

    @classmethod
    def of_task(cls, gram: Tensor, matrix: Tensor, reached: Tensor | None) -> LayerSums:
        """One task: gram `[N, g, d, d]`, W_t `[N, g, d, K]`, columns reached by the loss `[K]`."""
        grams, cross = gram.unsqueeze(0), gram @ matrix
        parts = torch.zeros(matrix.shape[-1], dtype=torch.long)
        if reached is not None and not reached.all():
            grams = torch.cat([grams, torch.zeros_like(grams)])
            cross = torch.where(reached, cross, 0.0)
            parts = (~reached).long().cpu()
        return cls(tuple(parts.tolist()), ExactSum.of(grams), ExactSum.of(cross)).canonical()

    def plus(self, other: LayerSums, sign: int) -> LayerSums:
        """Sum or difference, column by column."""
        pairs = list(zip(self.parts, other.parts, strict=True))
        distinct = list(dict.fromkeys(pairs))
        ours, theirs = self.grams, other.grams
        if len(distinct) > 1:
            ours = ours.map(lambda words: words[[a for a, _ in distinct]])
            theirs = theirs.map(lambda words: words[[b for _, b in distinct]])
        parts = tuple(distinct.index(pair) for pair in pairs)
        both = LayerSums(parts, ours.plus(theirs, sign), self.cross.plus(other.cross, sign))
        return both.canonical()

    def canonical(self) -> LayerSums:
        """Merge parts with equal sums, so that a task that was subtracted leaves no trace."""
        count = len(self.grams.high)
        if count == 1:
            return self
        words = [(self.grams.high[p], self.grams.low[p]) for p in range(count)]
        first: dict[int, int] = {}  # part -> the first part with the same sums
        for p in dict.fromkeys(self.parts):
            same = (q for q in first.values() if all(map(torch.equal, words[p], words[q])))
            first[p] = next(same, p)
        kept = list(dict.fromkeys(first.values()))
        parts = tuple(kept.index(first[p]) for p in self.parts)
        return LayerSums(parts, self.grams.map(lambda w: w[kept]), self.cross)


@dataclass(frozen=True)
class TaskSums:
    """All sums over the finished tasks."""

    layers: dict[str, LayerSums]
    statistics: dict[str, ExactSum]  # [N, 3, C] by the place of a BatchNorm: n, n m, n (var + m^2)
    scalars: ExactSum  # [N, 3]: L_t(W_t), tr W_t^T G_t W_t, tasks in which the particle died
    samples: int
    tasks: tuple[int, ...]  # fingerprints, ascending

    def plus(self, other: TaskSums, sign: int = 1) -> TaskSums:
        """The sums over the tasks of both, or over those of the first without the second's."""
        tasks, theirs = Counter(self.tasks), Counter(other.tasks)
        if sign < 0 and not theirs <= tasks:
            raise ValueError(
                "only tasks that were added can be taken away: the second filter has a task that "
                "the first has not"
            )
        left = tasks + theirs if sign > 0 else tasks - theirs
        return TaskSums(
            {name: sums.plus(other.layers[name], sign) for name, sums in self.layers.items()},
            {k: sums.plus(other.statistics[k], sign) for k, sums in self.statistics.items()},
            self.scalars.plus(other.scalars, sign),
            self.samples + sign * other.samples,
            tuple(sorted(left.elements())),
        )

    def state_dict(self, collect: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Plain values and lists of two words; `collect` joins the `[N, ...]` of all ranks."""

        def words(sums: ExactSum, axis: int = 0) -> list[Tensor]:
            tensors = (sums.high, sums.low)
            return [collect(t.movedim(axis, 0)).movedim(0, axis).clone() for t in tensors]

        def of_layer(sums: LayerSums) -> dict[str, Any]:
            grams, cross = words(sums.grams, 1), words(sums.cross)
            return {"parts": list(sums.parts), "grams": grams, "cross": cross}

        return {
            "layers": {name: of_layer(sums) for name, sums in self.layers.items()},
            "statistics": {name: words(sums) for name, sums in self.statistics.items()},
            "scalars": words(self.scalars),
            "samples": self.samples,
            "tasks": list(self.tasks),
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], layers: dict[str, Layer], local: Callable[[Tensor], Tensor]
    ) -> TaskSums:
        """The inverse of `state_dict`. Raise `ValueError` if layers have other names or sizes."""

        def words(pair: list[Tensor], axis: int = 0) -> ExactSum:
            return ExactSum(*(local(t.movedim(axis, 0)).movedim(0, axis).clone() for t in pair))

        sizes = {each.name: (each.blocks, each.width, each.columns) for each in layers.values()}
        saved = state["layers"]
        found = {name: each["cross"][0][0] for name, each in saved.items()}
        check_same_shapes(sizes, found, "this state is of another model")
        sums = {
            name: LayerSums(tuple(each["parts"]), words(each["grams"], 1), words(each["cross"]))
            for name, each in saved.items()
        }
        statistics = {name: words(pair) for name, pair in state["statistics"].items()}
        tasks = tuple(int(task) for task in state["tasks"])
        return cls(sums, statistics, words(state["scalars"]), int(state["samples"]), tasks)
