"""A comparison of two saved filters: whether they contain the same data.

A filter from which data were deleted and one that never had them have the same sums to the bit, and
keep the same samples. Then everything that can be computed from them is the same.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from .evidence import NormalEquations, solve_head
from .statistics import HeadStatistics, Units

SUMS = ("gram", "gram_carry", "moments", "moments_carry", "squares", "squares_carry")


@dataclass(frozen=True)
class Line:
    """One item of the comparison: both values, and for numbers the largest difference."""

    name: str
    values: list[str]
    difference: float | None = None

    @property
    def equal(self) -> bool:
        return self.values[0] == self.values[1] and not self.difference


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Line]:
    """Compare the states of two filters, estimators or heads of `orderless fit`."""
    pair = [_filter_state(state) for state in (first, second)]
    around = [{**state, "filter": None, "calls_": None} for state in (first, second)]
    if pair == [first, second]:
        around = [{"targets": state["targets"]} for state in pair]
    lines = [
        Line("kind of maps and grid", [str(state["fingerprint"]) for state in pair]),
        Line("maps", [_digest(state["particles"]) for state in pair]),
        Line("classes and scales", [_digest(each) for each in around]),
    ]
    sums = [state["statistics"] or {} for state in pair]
    for name in ("samples", "clipped", "columns"):
        values = [each.get(name) for each in sums]
        texts = [_digest(value) if isinstance(value, list) else str(value) for value in values]
        lines.append(Line(name, texts))
    for name in SUMS:
        tensors = [each.get(name) for each in sums]
        if any(tensor is not None for tensor in tensors):
            lines.append(Line(name, [_digest(t) for t in tensors], _difference(*tensors)))
    kept = [{k: v for k, v in each.items() if k.startswith("kept_")} for each in sums]
    lines.append(Line("kept samples", [_digest(each) for each in kept]))
    evidence = [_evidence(state) for state in pair]
    words = [f"{value:.17g}" for value in evidence]
    return [*lines, Line("maximal log evidence", words, abs(evidence[0] - evidence[1]))]


def _filter_state(state: Any) -> Mapping[str, Any]:
    inner = state.get("filter", state) if isinstance(state, Mapping) else state
    if not isinstance(inner, Mapping) or not {"fingerprint", "statistics"} <= inner.keys():
        raise ValueError("this is no saved exact filter, and nothing that holds one")
    return inner


def _digest(value: Any) -> str:
    """SHA-256 of plain values and the bytes of tensors."""
    leaves, tree = tree_flatten(value)
    digest = hashlib.sha256(str(tree).encode())
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            digest.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
            digest.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(f"{leaf!r},".encode())
    return digest.hexdigest()


def _difference(first: Tensor | None, second: Tensor | None) -> float:
    if first is None or second is None or first.shape != second.shape:
        return float("inf")
    return float((first - second).abs().max()) if first.numel() else 0.0


def _evidence(state: Mapping[str, Any]) -> float:
    """The sum of the maps' log evidence, maximised over the prior; a filter's is their mean, at the
    ridge it has chosen."""
    sums = state["statistics"]
    if sums is None:
        return 0.0
    # The grid's unit is part of the fingerprint; equal words are equal sums in any unit.
    units = Units(2.0**-12, 1.0, 16)
    statistics = HeadStatistics.from_state(sums, units, torch.device("cpu"))
    moments, squares = statistics.moments.value(), statistics.squares.value()
    classes, total = state["targets"] == "Classes", 0.0
    for gram, own in zip(statistics.gram, moments, strict=True):
        data = gram.value(), own, squares
        equations = NormalEquations.of(*data, classes=classes, standardize=True)
        total += solve_head(equations).log_evidence
    return total
