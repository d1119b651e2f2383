"""The page of an audit: anybody's learner in the places of methods, and what was found."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from ...audit import LearnerAudit, OrderSensitivity
from ...audit.words import VERDICTS, comparison_note, findings, probability
from ...storage import versions, write_atomically
from ..collect import spread
from ..tables import MISSING, percent
from .data import method_looks, rounded, scatter_data
from .render import render
from .table import TableColumn, build_table, thousandths

# How a verdict is coloured, and which way the column sorts.
KINDS = {
    "none": "holds",
    "not shown": "open",
    "undecided": "open",
    "below reseeding": "open",
    "sensitive": "fails",
}


def write_audit_page(result: OrderSensitivity, folder: Path | str, command: str = "") -> Path:
    """Write ``folder/report.html``; returns its path."""
    path = Path(folder) / "report.html"
    write_atomically(path, render(audit_data(result, Path(folder), command)).encode())
    return path


def audit_data(result: OrderSensitivity, folder: Path, command: str = "") -> dict[str, Any]:
    """What the page shows, in the form of `page_data`."""
    names = [each.name for each in result.learners]
    orders, runs = range(len(result.orders)), result.seeds * len(result.orders)
    entries = {each.name: _entry(each, runs) for each in result.learners}
    looks = {name: {**look, "label": name} for name, look in method_looks(names).items()}
    shown = {
        "benchmark": f"Order sensitivity of {result.learner.name}",
        "subtitle": f"{len(result.tasks)} tasks, {len(orders)} orders x {result.seeds} seeds",
        "scenario": "",
        "preset": "",
        "score": "accuracy",
        "tasks": list(result.tasks),
        "orders": {str(index): list(result.orders[index]) for index in orders},
        "methods": looks,
        "table": build_table(COLUMNS, entries),
        "scatter": scatter_data({"score_kind": "accuracy", "methods": entries}),
        "matrices": {each.name: _matrices(each) for each in result.learners},
        "findings": [_finding(result, each) for each in result.learners],
        "suffering": [
            _range(each, task) for task in range(len(result.tasks)) for each in result.learners
        ],
        "weights": [None, None],
        "curves": None,
        "density": [],
        "claims": [],
        "notes": list(filter(None, [comparison_note(result)])),
        "command": command or None,
        "device": platform.machine(),
        "versions": versions(),
        "duration": sum(each.seconds for each in result.learners),
        "cells": runs * len(names),
        "settings": {},
        "own_settings": {},
    }
    return {"directory": str(folder), "results": [shown], "problems": []}


def _entry(learner: LearnerAudit, runs: int) -> dict[str, Any]:
    """What table and scatter plot read of one learner; `spread` has the worst order's average."""
    orders = list(range(learner.scores.shape[1]))
    counts = {"order_indices": orders, "died": learner.broken_runs, "cells": runs}
    return {**learner.as_dict(), **spread(learner.scores, True), **counts}


def _matrices(learner: LearnerAudit) -> dict[str, list[list[float | None]]]:
    """order index -> R ``[T, T]``, the mean over seeds."""
    means = learner.matrices.mean(axis=0)
    return {
        str(index): [[rounded(value) for value in row] for row in matrix]
        for index, matrix in enumerate(means)
    }


def _finding(result: OrderSensitivity, learner: LearnerAudit) -> dict[str, Any]:
    return {
        "method": learner.name,
        "verdict": f"{learner.name}: {VERDICTS[learner.verdict]}",
        "kind": KINDS[learner.verdict],
        "sentences": findings(result, learner),
    }


def _range(learner: LearnerAudit, task: int) -> dict[str, Any]:
    """How far the order moves a learner's score on one task."""
    means = learner.scores[:, :, task].mean(axis=0)
    ends = {"low": int(means.argmin()), "high": int(means.argmax())}
    return {
        "task": task,
        "method": learner.name,
        "mean": rounded(means.mean()),
        **{end: {"order": order, "score": rounded(means[order])} for end, order in ends.items()},
    }


def _percent_column(heading: str, key: str, better: str, explanation: str, **more: Any) -> Any:
    def write(entry: dict[str, Any]) -> str:
        return percent(entry[key])

    return TableColumn(heading, explanation, lambda entry: entry[key], write, "%", better, **more)


def _variance_column(heading: str, key: str, explanation: str, **more: Any) -> TableColumn:
    def write(entry: dict[str, Any]) -> str:
        return thousandths(entry[key])

    return TableColumn(
        heading, explanation, lambda entry: entry[key], write, "× 10⁻³", "low", **more
    )


COLUMNS = [
    TableColumn(
        "order matters",
        "yes: more than another seed does, and by no chance. less than seed: by no chance, but "
        "another seed matters as much. not shown: it may be chance. not at all: every order gave "
        "the same bits. undecided: too few runs to tell.",
        lambda entry: list(KINDS).index(entry["verdict"]),
        lambda entry: VERDICTS[entry["verdict"]],
        better=None,
    ),
    _percent_column(
        "average",
        "average",
        "high",
        "Mean accuracy over tasks, orders and seeds after the last task.",
        honour="highest average",
    ),
    _percent_column(
        "worst order",
        "worst_order",
        "high",
        "The average under the order that suited the learner least.",
    ),
    _variance_column(
        "order variance",
        "order_variance",
        "Variance over orders while the seed is held fixed: order effect + interaction.",
        honour="lowest order variance",
    ),
    _variance_column(
        "seed variance",
        "seed_variance",
        "Variance over seeds while the order is held fixed: seed effect + interaction.",
    ),
    TableColumn(
        "p",
        "Permutation test of “the order has no effect”: order labels shuffled within each seed.",
        lambda entry: entry["p_value"],
        lambda entry: MISSING if entry["p_value"] is None else probability(entry["p_value"]),
    ),
    _variance_column("total variance", "variance", "The sum of the next three."),
    _variance_column("order effect", "order_effect", "What an order does with every seed alike."),
    _variance_column("seed effect", "seed_effect", "What a seed does in every order alike."),
    _variance_column("interaction", "interaction", "What an order does with one seed only."),
    _percent_column(
        "disagreement",
        "mean_disagreement",
        "low",
        "Share of test samples on which two orders, on average, predict different labels.",
    ),
]
