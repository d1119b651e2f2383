"""From cells to summaries: one per (benchmark, scenario, preset), one row per method."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from orderless import metrics
from orderless_lab.storage.typed import Misfit, Setting, as_json, decode

from ..experiments.record import CellRecord, Run, load_run
from ..experiments.store import StoreError, read_cell
from ..methods import table_order
from ..paper import released_scoring
from .blocks import Cells, by_order_place, by_place, complete_block, score_grid
from .claims import judge_claims
from .commands import joined
from .summary import MethodSummary, ReportError, Summary

T = TypeVar("T")


def loaded(
    source: Run | str | Path,
    read: Callable[[Path], object] | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """The run, read from its directory if necessary; raises `ReportError` if it is not valid."""
    if isinstance(source, Run):
        return source
    try:
        return load_run(source, read=read or read_cell, tell=tell)
    except StoreError as error:
        raise ReportError(str(error)) from error


def summarize(
    source: Run | str | Path, read: Callable[[Path], object] | None = None
) -> list[Summary]:
    """One summary per (benchmark, scenario, preset) found in a run.

    Args:
        source: a run directory, or a run from `load_run`.
        read: turns one cell file into plain JSON; the default reads what `orderless run` wrote.

    Raises:
        ReportError: no finished cells, or a file that is not one.
    """
    return [_summarize_table(cells) for cells in loaded(source, read).tables().values()]


def _summarize_table(cells: list[CellRecord]) -> Summary:
    first = cells[0]
    if len({len(cell.order) for cell in cells}) > 1:
        raise ReportError(
            f"Cells of {', '.join(first.table)} have different numbers of tasks; cells of "
            "different experiments cannot share a directory."
        )
    names = sorted({cell.method for cell in cells}, key=table_order)
    methods = {name: _summarize_method(by_place(cells, name)) for name in names}
    notes = _notes(methods)
    expert = _shared([cell.expert for cell in cells])
    if expert is None and any(cell.expert for cell in cells):
        notes.append("The cells do not all clone the same expert.")
    untrained = _mean(_mean(cell.scores["accuracy"][0]) for cell in cells)
    summary = Summary(
        benchmark=first.benchmark,
        scenario=first.scenario,
        preset=first.preset,
        score_kind=first.score_kind,
        task_names=first.task_names,
        settings=_shared_settings(cells),
        methods=methods,
        command=joined(_distinct(cell.command for cell in cells), names) or None,
        device=", ".join(_distinct(cell.device for cell in cells)) or None,
        versions={
            name: ", ".join(_distinct(cell.versions.get(name) for cell in cells))
            for name in _distinct(name for cell in cells for name in cell.versions)
        },
        duration=float(sum(cell.duration for cell in cells)),
        notes=notes,
        expert=expert,
        random_return=untrained if expert else None,
        claims=[],
    )
    return replace(summary, claims=judge_claims(summary, cells))


# measures of S[seed, order, task] and of R by their names in `metrics`
STATISTICS = ("average", "variance", "order_variance", "seed_variance", "worst_order", "interval")
NORMALIZED = ("normalized_variance", "normalized_order_variance", "order_contributions")
TRANSFERS = {
    "just_learned": metrics.just_learned,
    "forgetting": metrics.forgetting,
    "first_minus_last": metrics.first_minus_last,
    "bwt": metrics.backward_transfer,
    "fwt": metrics.forward_transfer,
}


def _summarize_method(cells: Cells) -> MethodSummary:
    seeds, orders = complete_block(cells)
    used = [cells[seed, order] for seed in seeds for order in orders]
    scores = score_grid(cells, seeds, orders)
    assert scores is not None  # load_run has checked every final row
    by_run = zip(scores.reshape(len(used), -1), used, strict=True)
    by_order = metrics.order_averages(scores)
    worst = orders[int(by_order.argmin())]
    matrices = np.array([cell.scores["accuracy"] for cell in used], dtype=np.float64)
    scoring = _mean(cell.scoring_duration for cell in cells.values())

    def average(combine: str) -> float | None:
        combined = score_grid(cells, seeds, orders, combine)
        return None if combined is None else metrics.average(combined)

    found: dict[str, object] = {
        **{name: getattr(metrics, name)(scores) for name in STATISTICS},
        "average_logits": average("logits"),
        "average_probs": average("probs"),
        "order_averages": by_order,
        "worst_order_index": worst,
        "worst_order_tasks": cells[seeds[0], worst].order,
        "task_averages": scores.mean(axis=(0, 1)),
        "place_averages": np.mean([row[cell.order] for row, cell in by_run], axis=0),
        "seed_averages": scores.mean(axis=(1, 2)),
        "nll": _mean(_mean(cell.nll) for cell in used),
        "ece": _mean(_mean(cell.ece) for cell in used),
        "disagreement": _disagreement(cells, seeds, orders),
        "orders": len(orders),
        "seeds": len(seeds),
        "order_indices": orders,
        "seed_values": seeds,
        "cells": len(cells),
        "died": sum(cell.died_at is not None for cell in cells.values()),
        "duration": float(sum(cell.duration for cell in cells.values())),
        "particles": _shared([cell.particles for cell in used]),
        # of the weights used for predictions; the exact filter's trace has its evidence weights
        "ess_final": _mean(cell.last("ess") if cell.ess is None else cell.ess for cell in used),
        "largest_weight_final": _mean(cell.last("largest_weight") for cell in used),
        **{n: _mean(getattr(c, n) for c in used) for n in ("log_evidence", "temperature", "alive")},
        **_plasticity(used, len(orders)),
        "weight_spread": _weight_spread(used),
        "settings": _shared_settings(used),
        "scoring_duration": None if scoring is None else scoring * len(cells),
    }
    if np.isfinite(matrices).all():  # not those of a learner that sees all tasks at once
        for name, measure in TRANSFERS.items():
            runs = zip(matrices, used, strict=True)
            found[name] = _mean(measure(matrix, cell.order) for matrix, cell in runs)
    if used[0].score_kind == "accuracy":  # dividing by a mean makes no sense for returns
        found["interval"] = np.clip(metrics.interval(scores), 0, 1)
        found |= {name: getattr(metrics, name)(scores) for name in NORMALIZED}
        within = metrics.order_contributions(scores, within_seed=True)
        found["order_contributions_within_seed"] = within
        found["average_released"] = average(released_scoring(used[0].method))
    plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}
    try:  # what is not finite becomes None, as in the file
        return decode(MethodSummary, as_json(plain))
    except Misfit as misfit:
        raise ReportError(
            f"The scores of {used[0].method} are too large: {misfit} is not finite."
        ) from None


def _disagreement(cells: Cells, seeds: list[int], orders: list[int]) -> float | None:
    """The disagreement between orders of one seed, averaged over tasks and seeds."""
    values = []
    for seed in seeds:
        labels = [cells[seed, order].labels() for order in orders]
        complete = [tasks for tasks in labels if tasks is not None]
        if len(complete) < len(labels):
            return None
        for task in zip(*complete, strict=False):
            if len({len(predictions) for predictions in task}) == 1:
                values.append(metrics.disagreement(np.stack(task)))
    return _mean(values)


def _weight_spread(cells: list[CellRecord]) -> dict[str, list[float]]:
    """For each term of the loss, the spread of log-weight increments by place, mean over runs."""
    means: dict[str, list[float]] = {}
    for term in ("policy", "value", "entropy"):
        found: dict[int, list[float]] = {}
        for cell in cells:
            steps = [step or 0 for step in cell.trace.get("step", [])]
            values = cell.trace.get(f"log_weight_{term}", []) if cell.died_at is None else []
            for step, value in zip(steps, values, strict=False):
                if step > 0 and value is not None:  # tasks take equally many steps
                    place = math.ceil(step * len(cell.order) / max(steps))
                    found.setdefault(place, []).append(value)
        if any(any(values) for values in found.values()):
            means[term] = [float(np.mean(found[place])) for place in sorted(found)]
    return means


def _plasticity(cells: list[CellRecord], orders: int) -> dict[str, dict[str, list[float]]]:
    """The mean of each measure by place, and half of its 95 % interval over orders, of a block."""
    means: dict[str, list[float]] = {}
    halves: dict[str, list[float]] = {}
    places = [by_order_place(cell) for cell in cells]
    for name in places[0]:
        rows = [measures.get(name, []) for measures in places]
        if all(row and len(row) == len(rows[0]) and None not in row for row in rows):
            # cells come seed by seed; runs that share an order are not independent of each other
            values = np.array(rows, dtype=np.float64).reshape(-1, orders, len(rows[0])).mean(axis=0)
            means[name] = values.mean(axis=0).tolist()
            if orders > 1:
                intervals = map(metrics.mean_interval, values.T)
                halves[name] = [each.high - each.value for each in intervals]
    return {"plasticity": means, "plasticity_half": halves}


def _notes(methods: dict[str, MethodSummary]) -> list[str]:
    """Warnings for the comparison of rows."""
    by_text: dict[str, list[str]] = {}
    for name, e in methods.items():
        left_out = e.cells - e.orders * e.seeds
        partial = (
            f"{e.cells} cells are finished; the row uses the largest complete block, "
            f"{e.seeds} seeds x {e.orders} orders, and leaves out {left_out}."
        )
        broken = (
            f"in {e.died} of {e.cells} cells no particle kept a finite loss; "
            "scores are those of the networks as they stood before that step."
        )
        for text, said in ((partial, left_out), (broken, e.died)):
            if said:
                by_text.setdefault(text, []).append(name)
    notes = [f"{', '.join(names)}: {text}" for text, names in by_text.items()]
    if len({(tuple(e.seed_values), tuple(e.order_indices)) for e in methods.values()}) > 1:
        most = max(entry.cells for entry in methods.values())
        fewer = [name for name, entry in methods.items() if entry.cells < most]
        notes.append(f"The rows do not all stand on the same seeds and orders{_named(fewer)}.")
    for what, unseen in (("order", "order variance and intervals"), ("seed", "seed variance")):
        ones = [name for name, entry in methods.items() if getattr(entry, f"{what}s") == 1]
        if ones:
            which = _named(ones if len(ones) < len(methods) else [])
            notes.append(f"One {what} only{which}: {unseen} cannot be seen.")
    return notes


def _named(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _mean(values: Iterable[float | None] | None) -> float | None:
    """The mean, or None if a value is missing: a mean over some of the runs would mislead."""
    numbers = [math.nan if value is None else value for value in values or ()]
    mean = float(np.mean(numbers)) if numbers else math.nan
    return mean if math.isfinite(mean) else None


def _shared(values: list[T]) -> T | None:
    """The value if all are equal, otherwise None."""
    return values[0] if all(value == values[0] for value in values) else None


def _distinct(values: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value))


def _shared_settings(cells: list[CellRecord]) -> dict[str, Setting]:
    """The settings that are equal in all of these cells."""
    all_of = [cell.settings.items() for cell in cells]
    return {key: value for key, value in all_of[0] if all((key, value) in of for of in all_of)}
