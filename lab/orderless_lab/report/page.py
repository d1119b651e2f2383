"""The report as one HTML page that opens from disk and makes no network request."""

import base64
import hashlib
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ..paper.claims import evidence
from ..suites.registry import label_of
from .columns import NUMBERS
from .figures import drawn, svg
from .frame import Row, matrix_of
from .sentences import competing, undominated
from .summary import Summary
from .tables import readable, title, units


def render(summaries: list[Summary]) -> str:
    """The page of these summaries, one below the other."""
    folder = files(__package__) / "assets"
    template, style, script = (
        (folder / name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "table.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(
        style=Markup(style),
        script=Markup(script),
        digest=digest,
        evidence=evidence,
        results=[_result(summary, place) for place, summary in enumerate(summaries)],
    )


def _result(summary: Summary, place: int) -> dict[str, Any]:
    """What the template needs of one summary; `place` keeps its figures apart from others'."""
    texts = readable(summary)
    return {
        "summary": summary,
        "table": summary.table,
        "content": summary.as_json(),
        "benchmark": label_of(summary.table.benchmark),
        "title": title(summary.table),
        "units": units(summary.table),
        "texts": texts,
        "columns": {name: NUMBERS[name] for name in texts.columns},
        "best": {column: _best(summary, texts, column) for column in texts.columns},
        "undominated": undominated(summary.numbers),
        "figures": {
            name: Markup(svg(figure, f"{place}{name}"))
            for name, figure in drawn(summary.table, summary.numbers)
        },
        "matrices": {name: _matrix(summary.table.rows[name]) for name in texts.index},
    }


def _best(summary: Summary, texts: pd.DataFrame, column: str) -> list[str]:
    """The rows with the best entry of a column, as printed, of those that may be called so."""
    number = NUMBERS[column]
    values = summary.numbers[column][competing(summary.table)].dropna()
    if number.better is None or len(values) < 2:
        return []
    best = values.idxmax() if number.better == "high" else values.idxmin()
    return [name for name in values.index if texts[column][name] == texts[column][best]]


def _matrix(row: Row) -> list[list[float]]:
    """[moment, place]: the mean score on the k-th task of the order, before and after each task;
    empty for returns, and where scores are missing."""
    mean = np.mean([matrix_of(cell)[:, cell.order] for cell in row.block], axis=0)
    return [] if row.returns or not np.isfinite(mean).all() else mean.tolist()
