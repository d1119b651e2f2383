"""The content of the page: numbers and text as plain data, charts as SVG.

The data is kept small: a matrix is the mean over seeds with three decimals, a density an image of
64 x 64 bytes. The page of a full run has less than half a megabyte.
"""

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderless.text import MISSING
from orderless_lab.storage.typed import Setting

from ...experiments.record import CellRecord, Run
from ...paper import benchmark_label, method_label
from ..charts import Band, Series, Style, method_styles, scatter_spots, series
from ..claims import PLASTIC, PLASTICITY
from ..columns import Column, R, columns_of, learning_rate, row_label
from ..density import Frames
from ..reading import UPPER_BOUND, competing, headline, readable, telling_pair
from ..summary import Claim, ReportError, Summary
from .charts import icon, scatter_charts, series_chart
from .svg import variable

DENSITY = 64  # pixels across
UNITS = {"score": "%", "variance": "× 10⁻³"}

Matrix = list[list[float | None]]
Part = dict[str, Any]  # as the page's script reads it


@dataclass(frozen=True, kw_only=True)
class Result:
    """The part of the page about one table; empty fields are not shown."""

    benchmark: str
    subtitle: str
    headline: str = ""
    pair: list[str]  # the methods whose matrices are shown first
    scenario: str = ""
    preset: str = ""
    score: str
    tasks: list[str]
    orders: dict[str, list[int]]
    methods: dict[str, Part]  # labels and symbols for legends
    table: Part
    dots: bool = False
    matrices: dict[str, dict[str, Matrix]]
    values: dict[str, Part] = field(default_factory=dict)  # the means in each chart over time
    density: dict[str, list[Part]] = field(default_factory=dict)  # run -> its snapshots
    findings: list[Part] = field(default_factory=list)  # of an audit: verdicts, explained
    claims: list[Claim] = field(default_factory=list)
    notes: list[str]
    command: str | None
    device: str | None
    versions: dict[str, str]
    duration: float
    cells: int
    settings: dict[str, Setting] = field(default_factory=dict)
    own_settings: dict[str, dict[str, Setting]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """All results, and for each the SVG of its charts by name and width."""

    directory: str
    results: list[Result]
    charts: list[dict[str, str]]
    problems: list[str]


def page_data(
    run: Run,
    summaries: Sequence[Summary],
    frames: Sequence[Frames] = (),
    problems: Sequence[str] = (),
) -> Page:
    """The page of a run; without matplotlib it has no charts, and `problems` says why."""
    tables, found = run.tables(), list(problems)
    results, charts = [], []
    for summary in map(readable, summaries):
        cells, methods = tables[summary.table], summary.methods
        styles = method_styles(methods, partial(row_label, methods=methods))
        result = _result(summary, cells, styles)
        # Snapshots that belong to no cell of the run are shown with every result.
        names = {cell.name: cell for cell in cells}
        known = {cell.name for cell in run.cells} - names.keys()
        density = [_moments(f, names.get(f.name), result) for f in frames if f.name not in known]
        try:
            result, drawn = _with_charts(result, summary, cells, styles)
        except ReportError as error:
            drawn = {}
            found.append(str(error))
        results.append(replace(result, density=dict(density)))
        charts.append(drawn)
    return Page(str(run.directory), results, charts, list(dict.fromkeys(found)))


def _result(summary: Summary, cells: list[CellRecord], styles: dict[str, Style]) -> Result:
    own = {
        name: {k: v for k, v in entry.settings.items() if k not in summary.settings}
        for name, entry in summary.methods.items()
    }
    kept = ("scenario", "preset", "claims", "notes", "command", "device", "versions", "duration")
    same: Any = {name: getattr(summary, name) for name in (*kept, "settings")}
    scenario = summary.scenario
    what = scenario.capitalize() if summary.returns else f"{scenario}-incremental"
    return Result(
        benchmark=benchmark_label(summary.benchmark),
        subtitle=", ".join([what, f"preset {summary.preset}", *learning_rate(summary)]),
        headline=headline(summary),
        pair=telling_pair(summary),
        score=summary.score_kind,
        tasks=summary.task_names or [f"task {task}" for task in range(len(cells[0].order))],
        orders={str(cell.order_index): cell.order for cell in cells},
        methods=looks(styles),
        table=summary_table(summary),
        matrices=_matrices(summary, cells),
        cells=len(cells),
        **same,
        own_settings={name: settings for name, settings in own.items() if settings},
    )


def summary_table(summary: Summary) -> Part:
    """The table of a summary without normalized variances, which a chart shows."""
    columns = [c for c in columns_of(summary) if not c.heading.startswith("norm.")]
    runs = {name: (entry.died, entry.cells) for name, entry in summary.methods.items()}
    return build_table(columns, summary.methods, runs, competing(summary), bound=UPPER_BOUND)


def build_table(
    columns: Sequence[Column[R]],
    entries: Mapping[str, R],
    runs: Mapping[str, tuple[int, int]],
    rivals: Collection[str],
    bound: str | None = None,
) -> Part:
    """The columns and rows as the page's script reads them.

    An entry is `best` if none of the `rivals` is better. `runs`: method -> (runs that broke down,
    runs). `bound`: a method that is an upper bound and is not ranked.
    """
    rows: list[Part] = [
        {
            "method": name,
            "values": [column.value(entry) for column in columns],
            "texts": [column.text(entry, variance=thousandths) for column in columns],
            "best": [False] * len(columns),
            "died": runs[name][0],
            "cells": runs[name][1],
            "bound": name == bound,
        }
        for name, entry in entries.items()
    ]
    ranked = [row for row in rows if row["method"] in rivals]
    for place, column in enumerate(columns):
        known = [(r["values"][place], r["texts"][place]) for r in ranked]
        known = [(value, text) for value, text in known if value is not None]
        if column.better and len(known) > 1:
            # Entries are compared as printed: a difference that is not shown decides nothing.
            _, winner = max(known) if column.better == "high" else min(known)
            for row in ranked:
                row["best"][place] = row["texts"][place] == winner
    shown = ("heading", "explanation", "better", "honour")
    kinds = [{"unit": UNITS.get(c.kind, "")} | {n: getattr(c, n) for n in shown} for c in columns]
    return {"columns": kinds, "rows": rows}


def thousandths(value: float | None) -> str:
    """A variance in units of 1/1000, so that the column aligns; exactly 0 is written as 0."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    return f"{1000 * value:.2f}" if value >= 5e-6 else "<0.01"


def _with_charts(
    result: Result, summary: Summary, cells: list[CellRecord], styles: dict[str, Style]
) -> tuple[Result, dict[str, str]]:
    # Variances are not normalized for returns, or if a method has a mean of 0 on a task.
    normalized = not summary.returns and all(
        entry.normalized_variance is not None for entry in summary.methods.values()
    )
    spots = scatter_spots(summary.methods, normalized=normalized)
    score = summary.score_kind
    charts = scatter_charts(spots, styles, score, normalized=normalized) if spots else {}
    shown = [cell for cell in cells if cell.method in styles]
    many = [cell for cell in shown if cell.particles != 1]  # the weight of one network is always 1
    found = {
        "ess": series(many, "trace", "ess", "effective sample size", "log"),
        "largest": series(many, "trace", "largest_weight", "largest weight", "share"),
        "curves": series(shown, "curves", "return", "episode return"),
        **{f"plasticity-{name}": _by_place(summary, name) for name in PLASTICITY},
    }
    values = {}
    for key, data in found.items():
        if data is not None:
            charts |= series_chart(key, data, styles)
            means = {name: band.mean for name, band in data.lines.items()}
            values[key] = {
                "title": data.title,
                "steps": [float(f"{step:.4g}") for step in data.steps],
                "lines": {name: [float(f"{v:.3g}") for v in mean] for name, mean in means.items()},
                "unit": data.unit,
            }
    return replace(result, dots=normalized, values=values), charts


def _by_place(summary: Summary, measure: str) -> Series | None:
    """Means by place in the order with 95 % intervals; None for a single level."""
    lines = {}
    for name in (row for row in PLASTIC if row in summary.methods):
        entry = summary.methods[name]
        half = np.array(entry.plasticity_half.get(measure, []))
        if len(half) > 1:
            mean = np.array(entry.plasticity[measure])
            lines[name] = Band(mean, mean - half, mean + half)
    if not lines or "return" not in summary.methods[next(iter(lines))].plasticity:
        return None
    places = np.arange(1.0, 1 + max(len(band.mean) for band in lines.values()))
    return Series(PLASTICITY[measure][0], places, lines, unit="place")


def looks(styles: Mapping[str, Style]) -> dict[str, Part]:
    """The label and symbol of each method, with the colours and shapes of the charts."""
    return {
        name: {
            "label": style.label,
            "colour": variable(style.colour),
            "icon": icon(style),
            "filled": style.filled,
            "dashes": " ".join(map(str, style.dashes)),
        }
        for name, style in styles.items()
    }


def _matrices(summary: Summary, cells: list[CellRecord]) -> dict[str, dict[str, Matrix]]:
    """method -> order index -> the mean R over seeds; empty if only last rows have scores."""
    earlier = [row for cell in cells for row in cell.scores["accuracy"][:-1]]
    if all(value is None for row in earlier for value in row):
        return {}
    found: dict[str, dict[str, list[object]]] = {name: {} for name in summary.methods}
    for cell in cells:
        if cell.method in found:
            found[cell.method].setdefault(str(cell.order_index), []).append(cell.matrix())
    return {
        name: {index: rounded(np.mean(np.array(m), axis=0)) for index, m in orders.items()}
        for name, orders in found.items()
    }


def rounded(matrix: NDArray[np.float64]) -> Matrix:
    """The matrix with three decimals; None for values that are not finite."""
    return [[round(float(v), 3) if np.isfinite(v) else None for v in row] for row in matrix]


def _moments(frames: Frames, cell: CellRecord | None, result: Result) -> tuple[str, list[Part]]:
    """The label of a run, and its snapshots; a density is an image of bytes, top row first."""
    label, stages = frames.name, ["–"] * frames.moments
    if cell is not None:
        label = f"{method_label(cell.method)}, order {cell.order_index}, seed {cell.seed}"
        if frames.moments == len(cell.order) + 1:
            stages = ["before training", *(f"after {result.tasks[task]}" for task in cell.order)]
    moments = []
    for frame, step in enumerate(frames.steps):
        picture = np.round(255 * frames.density(frame, DENSITY)[::-1]).astype(np.uint8)
        moments.append(
            {
                "step": int(step),
                "stage": stages[frames.chosen[frame]],
                "ess": frames.ess(frame),
                "largest": float(frames.weights[frame].max()),
                "density": base64.b64encode(picture.tobytes()).decode(),
                "places": np.round(frames.places[frame], 3).tolist(),
            }
        )
    return label, moments
