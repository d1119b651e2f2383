"""What the page shows, as plain data: summaries and cells in, one JSON-ready dictionary out.

Everything is small on purpose: a matrix is the mean over seeds with three decimals, a trace is
resampled to ``POINTS`` moments. The page of a full run stays far below a megabyte.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ...methods import describe
from ..cells import Cell, group_key, score_matrix
from ..figures import method_styles
from ..paper import benchmark_label, method_label
from ..tables import learning_rate
from .density import densities
from .table import table_data

POINTS = 100  # moments at which a trace is drawn
DASHES = 5  # kinds of line the style sheet knows


def page_data(directory: Path, summaries: list[dict[str, Any]], cells: list[Cell]) -> Any:
    """The data of the whole page: one result per (benchmark, scenario, preset).

    Args:
        directory: the run directory, for its snapshots and its name.
        summaries: what `summarize` made of the cells.
        cells: the finished cells.
    """
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(group_key(cell), []).append(cell)
    drawn, problems = densities(directory, cells)
    results = []
    for summary in summaries:
        key = (summary["benchmark"], summary["scenario"], summary["preset"])
        result = _result(summary, groups[key])
        # A snapshot that belongs to no cell is shown with every result rather than lost.
        result["density"] = [entry for entry in drawn if entry["group"] in (None, list(key))]
        results.append(result)
    return {"directory": str(directory), "results": results, "problems": problems}


def _result(summary: dict[str, Any], cells: list[Cell]) -> dict[str, Any]:
    tasks = len(cells[0]["order"])
    names = summary["task_names"] or [f"task {task}" for task in range(tasks)]
    return {
        "benchmark": benchmark_label(summary["benchmark"]),
        "subtitle": _subtitle(summary),
        "scenario": summary["scenario"],
        "preset": summary["preset"],
        "score": "accuracy" if summary["score_kind"] == "accuracy" else "return",
        "tasks": [str(name) for name in names],
        "orders": {str(cell["order_index"]): cell["order"] for cell in cells},
        "methods": method_looks(list(summary["methods"])),
        "table": table_data(summary),
        "scatter": scatter_data(summary),
        "matrices": _matrices(summary, cells),
        "weights": [
            series(cells, "trace", "ess", "effective sample size", many=True),
            series(cells, "trace", "largest_weight", "largest weight", many=True),
        ],
        "curves": series(cells, "curves", "return", "episode return"),
        "claims": summary["claims"],
        "notes": summary["notes"],
        "command": summary["command"],
        "device": summary["device"],
        "versions": summary["versions"],
        "duration": summary["duration"],
        "cells": len(cells),
        "settings": summary["settings"],
        "own_settings": _own_settings(summary),
    }


def _subtitle(summary: dict[str, Any]) -> str:
    """What stands below the benchmark's name."""
    scenario = summary["scenario"]
    learns = summary["score_kind"] == "accuracy"
    what = f"{scenario}-incremental" if learns else scenario.capitalize()
    return ", ".join([what, f"preset {summary['preset']}", *learning_rate(summary)])


def method_looks(names: list[str]) -> dict[str, dict[str, Any]]:
    """How each method is called and drawn: the same colours and shapes as in figure2.png.

    Kin share a colour; ``dash`` tells their lines apart.
    """
    methods: dict[str, dict[str, Any]] = {}
    for name, (colour, marker, filled) in method_styles(names).items():
        kin = sum(method["colour"] == colour for method in methods.values())
        methods[name] = {
            "label": method_label(name),
            "colour": colour,
            "marker": marker,
            "filled": filled,
            "small": describe(name).tuned,
            "dash": kin % DASHES,
        }
    return methods


def scatter_data(summary: dict[str, Any]) -> dict[str, Any]:
    """Figure 2: a point per method, a dot per order where variances can be normalised.

    They cannot be for returns, nor where somebody has a mean of 0 on a task.
    """
    normalized = summary["score_kind"] == "accuracy" and all(
        short(entry["normalized_variance"]) is not None for entry in summary["methods"].values()
    )
    prefix = "normalized_" if normalized else ""
    points = []
    for name, entry in summary["methods"].items():
        total, order = entry[f"{prefix}variance"], entry[f"{prefix}order_variance"]
        if total is None or order is None:
            continue
        shares = (entry["order_contributions"], entry["order_contributions_within_seed"])
        dots = (
            zip(entry["order_indices"], entry["order_averages"], *shares, strict=True)
            if normalized
            else ()
        )
        points.append(
            {
                "method": name,
                "average": short(entry["average"]),
                "total": short(total),
                "order": short(order),
                "dots": [[index, *map(short, numbers)] for index, *numbers in dots],
            }
        )
    return {"normalized": normalized, "points": points}


def _matrices(summary: dict[str, Any], cells: list[Cell]) -> dict[str, dict[str, Any]]:
    """method -> order index -> R ``[T + 1, T]``, the mean over the seeds that finished it.

    Nothing where every run has its last row only: scores of what was learned on the way.
    """
    earlier = [row for cell in cells for row in cell["scores"]["accuracy"][:-1]]
    if all(value is None for row in earlier for value in row):
        return {}
    found: dict[str, dict[str, list[Any]]] = {name: {} for name in summary["methods"]}
    for cell in cells:
        found[cell["method"]].setdefault(str(cell["order_index"]), []).append(score_matrix(cell))
    return {
        name: {
            index: [[rounded(value) for value in row] for row in np.mean(matrices, axis=0)]
            for index, matrices in orders.items()
        }
        for name, orders in found.items()
    }


def series(
    cells: Iterable[Cell], record: str, key: str, title: str, *, many: bool = False
) -> dict[str, Any] | None:
    """One quantity over training: per method its mean over cells, and the lowest and highest.

    Args:
        record: the part of a cell that holds ``step`` and ``key``, two lists of equal length.
        many: leave out methods of one network, whose weight is always 1.
    """
    found: dict[str, list[tuple[list[float], list[float]]]] = {}
    for cell in cells:
        content = cell.get(record) or {}
        pairs = zip(content.get("step") or [], content.get(key) or [], strict=False)
        points = [pair for pair in pairs if all(_is_number(number) for number in pair)]
        if points and not (many and cell.get("particles") == 1):
            steps, values = zip(*points, strict=True)
            found.setdefault(cell["method"], []).append((list(steps), list(values)))
    if not found:
        return None
    ends = [steps[i] for traces in found.values() for steps, _ in traces for i in (0, -1)]
    grid = np.linspace(min(ends), max(ends), POINTS)
    lines = {name: _band(traces, grid) for name, traces in found.items()}
    return {"title": title, "steps": [short(step) for step in grid], "lines": lines}


def _band(traces: list[tuple[list[float], list[float]]], grid: Any) -> dict[str, Any]:
    """Mean, lowest and highest over cells on a common grid; null where no cell has come."""
    rows = np.array(
        [np.interp(grid, steps, values, left=np.nan, right=np.nan) for steps, values in traces]
    )
    reached = np.isfinite(rows).any(axis=0)
    band = {}
    for name, reduce in (("mean", np.nanmean), ("low", np.nanmin), ("high", np.nanmax)):
        band[name] = [
            short(float(reduce(column))) if some else None
            for column, some in zip(rows.T, reached, strict=True)
        ]
    return band


def _own_settings(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Per method, the settings that not all methods share."""
    return {
        name: own
        for name, entry in summary["methods"].items()
        if (own := {k: v for k, v in entry["settings"].items() if k not in summary["settings"]})
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def short(value: float | None) -> float | None:
    """Four significant digits are more than a picture can show."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def rounded(value: float) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None
