"""What is kept of finished tasks: sums of G_t, G_t W_t and a few numbers, none with an order."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor

from .layers import Layer
from .sums import ExactSum

Combine = Callable[[Any, Any], Any]  # + or -


@dataclass(frozen=True)
class LayerSums:
    """sum_t G_t and sum_t G_t W_t of one layer.

    A task whose loss does not reach an output column says nothing of it, so columns may have seen
    different tasks: column k has `grams[parts[k]]`. `grams` `[P, N, g, d, d]`, `cross`
    `[N, g, d, K]`. Columns with equal sums share a part, numbered by their first column.
    """

    parts: tuple[int, ...]
    grams: ExactSum
    cross: ExactSum

    @classmethod
    def of_task(cls, gram: Tensor, matrix: Tensor, reached: Tensor | None) -> LayerSums:
        """One task's: gram `[N, g, d, d]`, W_t `[N, g, d, K]`, the columns reached `[K]`."""
        grams, cross = gram.unsqueeze(0), gram @ matrix
        parts = torch.zeros(matrix.shape[-1], dtype=torch.long)
        if reached is not None and not reached.all():
            grams = torch.cat([grams, torch.zeros_like(grams)])
            cross = torch.where(reached, cross, 0.0)
            parts = (~reached).long().cpu()
        return cls(tuple(parts.tolist()), ExactSum.of(grams), ExactSum.of(cross)).canonical()

    def with_(self, other: LayerSums, combine: Combine) -> LayerSums:
        """Sum or difference, column by column."""
        pairs = list(zip(self.parts, other.parts, strict=True))
        distinct = list(dict.fromkeys(pairs))
        ours, theirs = self.grams, other.grams
        if len(distinct) > 1:
            ours = ours.map(lambda words: words[[a for a, _ in distinct]])
            theirs = theirs.map(lambda words: words[[b for _, b in distinct]])
        parts = tuple(distinct.index(pair) for pair in pairs)
        both = LayerSums(parts, combine(ours, theirs), combine(self.cross, other.cross))
        return both.canonical()

    def canonical(self) -> LayerSums:
        """Equal sums are one part: what was taken away leaves no trace, not even here."""
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


class LayerState(TypedDict):
    parts: list[int]
    grams: list[Tensor]
    cross: list[Tensor]


class SumsState(TypedDict):
    """`TaskSums` in a file; sums are two words."""

    layers: dict[str, LayerState]
    statistics: dict[str, list[Tensor]]
    scalars: list[Tensor]
    samples: int
    tasks: list[int]


@dataclass(frozen=True)
class TaskSums:
    """All sums. Named by layer; `statistics` by a BatchNorm's place: `[N, 3, C]` the sums of n,
    n mean, n (var + mean^2); `scalars` `[N, 3]`: L_t(W_t), tr W_t^T G_t W_t, tasks died in.

    `tasks` are fingerprints of the tasks, in ascending order.
    """

    layers: dict[str, LayerSums]
    statistics: dict[str, ExactSum]
    scalars: ExactSum
    samples: int
    tasks: tuple[int, ...]

    def plus(self, other: TaskSums) -> TaskSums:
        return self._with(other, operator.add, sorted(self.tasks + other.tasks))

    def minus(self, other: TaskSums) -> TaskSums:
        left = list(self.tasks)
        for task in other.tasks:
            if task not in left:
                raise ValueError(
                    "only tasks that were added can be taken away: the second filter has a task "
                    "that the first has not"
                )
            left.remove(task)
        return self._with(other, operator.sub, left)

    def _with(self, other: TaskSums, combine: Combine, tasks: list[int]) -> TaskSums:
        return TaskSums(
            {name: sums.with_(other.layers[name], combine) for name, sums in self.layers.items()},
            {name: combine(sums, other.statistics[name]) for name, sums in self.statistics.items()},
            combine(self.scalars, other.scalars),
            combine(self.samples, other.samples),
            tuple(tasks),
        )

    def state_dict(self, collect: Callable[[Tensor], Tensor]) -> SumsState:
        """Tensors and plain values; `collect` makes `[N, ...]` of what the ranks hold."""

        def words(sums: ExactSum, axis: int = 0) -> list[Tensor]:
            tensors = (sums.high, sums.low)
            return [collect(t.movedim(axis, 0)).movedim(0, axis).clone() for t in tensors]

        return {
            "layers": {
                name: {
                    "parts": list(sums.parts),
                    "grams": words(sums.grams, 1),
                    "cross": words(sums.cross),
                }
                for name, sums in self.layers.items()
            },
            "statistics": {name: words(sums) for name, sums in self.statistics.items()},
            "scalars": words(self.scalars),
            "samples": self.samples,
            "tasks": list(self.tasks),
        }

    @classmethod
    def from_state(
        cls, state: SumsState, layers: dict[str, Layer], local: Callable[[Tensor], Tensor]
    ) -> TaskSums:
        """The reverse, refused where a layer has another name or size."""

        def words(pair: list[Tensor], axis: int = 0) -> ExactSum:
            return ExactSum(*(local(t.movedim(axis, 0)).movedim(0, axis).clone() for t in pair))

        expected = {layer.name: layer for layer in layers.values()}
        if expected.keys() != state["layers"].keys():
            odd = min(expected.keys() ^ state["layers"].keys())
            raise ValueError(f"this state is of another model: {odd!r} is not in both")
        found = {}
        for name, layer in expected.items():
            saved = state["layers"][name]
            cross, sizes = words(saved["cross"]), (layer.blocks, layer.width, layer.columns)
            if tuple(cross.high.shape[1:]) != sizes:
                raise ValueError(
                    f"this state is of another model: the sums of {name!r} are "
                    f"{tuple(cross.high.shape[1:])} there and {sizes} here"
                )
            found[name] = LayerSums(tuple(saved["parts"]), words(saved["grams"], 1), cross)
        statistics = {name: words(pair) for name, pair in state["statistics"].items()}
        tasks = tuple(int(task) for task in state["tasks"])
        scalars = words(state["scalars"])
        return cls(found, statistics, scalars, int(state["samples"]), tasks)
