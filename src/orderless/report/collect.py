"""From cells to summaries: one block per (benchmark, scenario, preset), one entry per method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..methods import table_order
from .cells import (
    Cell,
    Place,
    ReportError,
    by_place,
    complete_block,
    group_key,
    load_cells,
    predicted_labels,
    score_grid,
    score_matrix,
)
from .claims import judge_claims
from .commands import joined

Summary = dict[str, Any]


def summarize(directory: str | Path, read: Callable[[Path], Cell] | None = None) -> list[Summary]:
    """One summary per (benchmark, scenario, preset) found in a run directory, ready for JSON.

    Args:
        directory: holds ``cells/*.json``.
        read: reads one cell file; the default is plain JSON.

    Raises:
        ReportError: no finished cells, or a file that is not one.
    """
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in load_cells(directory, read):
        groups.setdefault(group_key(cell), []).append(cell)
    return [_summarize_group(cells) for cells in groups.values()]


def _summarize_group(cells: list[Cell]) -> Summary:
    benchmark, scenario, preset = group_key(cells[0])
    _require_one_order_per_index(cells)
    names = sorted({cell["method"] for cell in cells}, key=table_order)
    summary: Summary = {
        "benchmark": benchmark,
        "scenario": scenario,
        "preset": preset,
        "score_kind": cells[0].get("score_kind", "accuracy"),
        "task_names": cells[0].get("task_names"),
        "settings": _shared_settings(cells),
        "methods": {name: _summarize_method(by_place(cells, name)) for name in names},
        "command": joined(_distinct(cell.get("command") for cell in cells), names) or None,
        "device": ", ".join(_distinct(cell.get("device") for cell in cells)) or None,
        "versions": _versions(cells),
        "duration": float(sum(cell.get("duration") or 0.0 for cell in cells)),
    }
    summary["notes"] = _notes(summary["methods"])
    if any("expert" in cell for cell in cells):
        summary["expert"] = _only(cell.get("expert") for cell in cells)
        if summary["expert"] is None:
            summary["notes"].append("The cells do not all clone the same expert.")
    summary["claims"] = judge_claims(summary, cells)
    return _without_infinities(summary)


def _require_one_order_per_index(cells: list[Cell]) -> None:
    orders: dict[int, list[int]] = {}
    for cell in cells:
        known = orders.setdefault(cell["order_index"], cell["order"])
        if known != cell["order"]:
            raise ReportError(
                f"Order {cell['order_index']} is {known} in one cell and {cell['order']} in "
                "another; cells of different experiments cannot share a directory."
            )


def _summarize_method(cells: dict[Place, Cell]) -> dict[str, Any]:
    seeds, orders = complete_block(cells)
    used = [cells[seed, order] for seed in seeds for order in orders]
    scores = score_grid(cells, seeds, orders)
    assert scores is not None  # load_cells has checked every final row
    entry: dict[str, Any] = {
        "average": metrics.average(scores),
        "average_logits": _average(score_grid(cells, seeds, orders, "logits")),
        "average_probs": _average(score_grid(cells, seeds, orders, "probs")),
    }
    entry |= spread(scores, used[0].get("score_kind", "accuracy") == "accuracy")
    worst = int(metrics.order_averages(scores).argmin())
    entry |= {
        "worst_order_index": orders[worst],
        "worst_order_tasks": cells[seeds[0], orders[worst]]["order"],
        "interval": list(metrics.interval(scores)),
        "task_averages": scores.mean(axis=(0, 1)).tolist(),
        "place_averages": _place_averages(scores, used),
        "seed_averages": scores.mean(axis=(1, 2)).tolist(),
    }
    entry |= _transfer(used)
    entry |= {
        "nll": _mean(_mean(cell.get("nll")) for cell in used),
        "ece": _mean(_mean(cell.get("ece")) for cell in used),
        "disagreement": _disagreement(cells, seeds, orders),
        "orders": len(orders),
        "seeds": len(seeds),
        "order_indices": orders,
        "seed_values": seeds,
        "cells": len(cells),
        "died": sum(cell.get("died_at") is not None for cell in cells.values()),
        "duration": float(sum(cell.get("duration") or 0.0 for cell in cells.values())),
        "particles": _only(cell.get("particles") for cell in used),
        # of the weights that answer; those of the trace are by evidence for the exact filter
        "ess_final": _mean(cell.get("ess", _last(cell, "ess")) for cell in used),
        "largest_weight_final": _mean(_last(cell, "largest_weight") for cell in used),
        "log_evidence": _mean(cell.get("log_evidence") for cell in used),
        "temperature": _mean(cell.get("temperature") for cell in used),
        "alive": _mean(cell.get("alive") for cell in used),
        "plasticity": _plasticity(used),
        "weight_spread": _weight_spread(used),
        "settings": _shared_settings(used),
    }
    scoring = _mean(cell.get("scoring_duration") for cell in cells.values())
    if scoring is not None:  # cells that tell it apart
        entry["scoring_duration"] = scoring * len(cells)
    return entry


def spread(scores: NDArray[np.float64], fractions: bool) -> dict[str, Any]:
    """Variances, and per order what figure 2 draws; normalising makes no sense for returns.

    Args:
        scores: S[seed, order, task].
        fractions: accuracies, not returns.
    """
    return {
        "variance": metrics.variance(scores),
        "order_variance": metrics.order_variance(scores),
        "seed_variance": metrics.seed_variance(scores),
        "normalized_variance": metrics.normalized_variance(scores) if fractions else None,
        "normalized_order_variance": metrics.normalized_order_variance(scores)
        if fractions
        else None,
        "worst_order": metrics.worst_order(scores),
        "order_averages": metrics.order_averages(scores).tolist(),
        "order_contributions": metrics.order_contributions(scores).tolist() if fractions else None,
        "order_contributions_within_seed": metrics.order_contributions(
            scores, within_seed=True
        ).tolist()
        if fractions
        else None,
    }


def _transfer(cells: list[Cell]) -> dict[str, float | None]:
    """Means over runs; null where R is not filled (a learner that sees all tasks at once)."""
    measures = {
        "forgetting": metrics.forgetting,
        "first_minus_last": metrics.first_minus_last,
        "bwt": metrics.backward_transfer,
        "fwt": metrics.forward_transfer,
    }
    matrices = [score_matrix(cell) for cell in cells]
    if any(matrix is None or not np.isfinite(matrix).all() for matrix in matrices):
        return dict.fromkeys(measures)
    return {
        name: _mean(
            measure(matrix, cell["order"])
            for matrix, cell in zip(matrices, cells, strict=True)
            if matrix is not None
        )
        for name, measure in measures.items()
    }


def _disagreement(cells: dict[Place, Cell], seeds: list[int], orders: list[int]) -> float | None:
    """Between orders of one seed, task by task, then the mean over tasks and seeds."""
    values = []
    for seed in seeds:
        labels = [predicted_labels(cells[seed, order]) for order in orders]
        complete = [tasks for tasks in labels if tasks is not None]
        if len(complete) < len(labels):
            return None
        for task in zip(*complete, strict=True):
            if len({len(predictions) for predictions in task}) == 1:
                values.append(metrics.disagreement(np.stack(task)))
    return _mean(values)


def _place_averages(scores: NDArray[np.float64], cells: list[Cell]) -> list[float]:
    """The mean score of the task that came first, second, ..., over runs."""
    rows = scores.reshape(len(cells), -1)
    placed = [row[cell["order"]] for row, cell in zip(rows, cells, strict=True)]
    return np.mean(placed, axis=0).tolist()


def _weight_spread(cells: list[Cell]) -> dict[str, list[float]]:
    """How far each term of the loss moves the weights apart in an update, by place, over runs."""
    means: dict[str, list[float]] = {}
    for term in ("policy", "value", "entropy"):
        found: dict[int, list[float]] = {}
        for cell in cells:
            for place, value in _placed(cell, f"log_weight_{term}"):
                found.setdefault(place, []).append(value)
        if any(any(values) for values in found.values()):
            means[term] = [float(np.mean(found[place])) for place in sorted(found)]
    return means


def _placed(cell: Cell, name: str) -> Iterator[tuple[int, float]]:
    """Values of a whole trace and at which place in the order each was taken.

    Tasks take equally many steps, so the step tells.
    """
    trace = cell.get("trace") or {}
    steps = [step or 0 for step in trace.get("step") or []]
    if cell.get("died_at") is None:
        for step, value in zip(steps, trace.get(name) or [], strict=False):
            if step > 0 and value is not None:
                yield math.ceil(step * len(cell["order"]) / max(steps)) - 1, value


def _plasticity(cells: list[Cell]) -> dict[str, list[float]]:
    """Each measure's mean over runs, by place in the sequence."""
    measured = [cell.get("plasticity") or {} for cell in cells]
    means: dict[str, list[float]] = {}
    for name in measured[0]:
        rows = [measure.get(name) or [] for measure in measured]
        if all(row and len(row) == len(rows[0]) and None not in row for row in rows):
            means[name] = np.mean(np.array(rows, dtype=np.float64), axis=0).tolist()
    return means


def _notes(methods: dict[str, dict[str, Any]]) -> list[str]:
    """What a reader must know before comparing rows."""
    by_text: dict[str, list[str]] = {}
    for name, entry in methods.items():
        left_out = entry["cells"] - entry["orders"] * entry["seeds"]
        if left_out:
            text = (
                f"{entry['cells']} cells are finished; the row uses the largest complete block, "
                f"{entry['seeds']} seeds x {entry['orders']} orders, and leaves out {left_out}."
            )
            by_text.setdefault(text, []).append(name)
        if entry["died"]:
            text = (
                f"in {entry['died']} of {entry['cells']} cells no particle kept a finite loss; "
                "scores are those of the networks as they stood before that step."
            )
            by_text.setdefault(text, []).append(name)
    notes = [f"{', '.join(names)}: {text}" for text, names in by_text.items()]
    blocks = {(tuple(e["seed_values"]), tuple(e["order_indices"])) for e in methods.values()}
    if len(blocks) > 1:
        most = max(entry["cells"] for entry in methods.values())
        fewer = [name for name, entry in methods.items() if entry["cells"] < most]
        notes.append(f"The rows do not all stand on the same seeds and orders{_named(fewer)}.")
    for what, unseen in (
        ("order", "order variance and intervals cannot be seen"),
        ("seed", "seed variance cannot be seen"),
    ):
        ones = [name for name, entry in methods.items() if entry[f"{what}s"] == 1]
        if ones:
            which = _named(ones if len(ones) < len(methods) else [])
            notes.append(f"One {what} only{which}: {unseen}.")
    return notes


def _named(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _average(scores: NDArray[np.float64] | None) -> float | None:
    return None if scores is None else metrics.average(scores)


def _mean(values: Iterable[float | None] | None) -> float | None:
    """The mean, or None where a value is missing: a mean over some of the runs would mislead."""
    numbers = list(values or [])
    if not numbers or any(number is None for number in numbers):
        return None
    return float(np.mean(np.array(numbers, dtype=np.float64)))


def _last(cell: Cell, name: str) -> float | None:
    trace = (cell.get("trace") or {}).get(name)
    return trace[-1] if trace else None


def _only(values: Iterable[Any]) -> Any:
    """The value all share, or None."""
    found = list(values)
    return found[0] if all(value == found[0] for value in found) else None


def _distinct(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value))


def _shared_settings(cells: list[Cell]) -> dict[str, Any]:
    """Settings that every one of these cells was run with."""
    settings = [cell.get("settings") or {} for cell in cells]
    return {
        key: value
        for key, value in settings[0].items()
        if all(key in other and other[key] == value for other in settings)
    }


def _versions(cells: list[Cell]) -> dict[str, str]:
    versions = [cell.get("versions") or {} for cell in cells]
    names = dict.fromkeys(name for version in versions for name in version)
    return {name: ", ".join(_distinct(version.get(name) for version in versions)) for name in names}


def _without_infinities(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
