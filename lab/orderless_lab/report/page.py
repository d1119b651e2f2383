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
from ..text import count
from .columns import NUMBERS
from .figures import drawn, svg
from .frame import Row
from .sentences import competing, undominated
from .summary import Summary
from .tables import readable, title, units

VERDICTS = {True: "holds", False: "does not hold", None: "not decided"}


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
        results=[_result(summary, place) for place, summary in enumerate(summaries)],
    )


def _result(summary: Summary, place: int) -> dict[str, Any]:
    """What the template needs of one summary; `place` keeps its figures apart from others'."""
    table = summary.table
    content = summary.as_json()
    texts = readable(summary)
    figures = [
        (name, explanation, Markup(svg(draw(), f"{place}{name}")))
        for name, explanation, draw in drawn(table, summary.numbers)
    ]
    claims = sorted(summary.claims, key=lambda claim: claim.holds is None)
    decided = sum(claim.holds is not None for claim in claims)
    return {
        "title": title(table),
        "headline": summary.headline,
        "units": units(table),
        "columns": [NUMBERS[name] for name in texts.columns],
        "rows": [
            (table.label(name), _remark(table.rows[name]), _cells(summary, texts, name))
            for name in texts.index
        ],
        "notes": summary.notes,
        "figures": figures,
        "matrices": {
            table.label(name): matrix
            for name in texts.index
            if (matrix := _matrix(table.rows[name])) is not None
        },
        "claims": [
            (VERDICTS[claim.holds], claim, evidence(claim, table.returns)) for claim in claims
        ],
        "decided": f"{count(decided, 'verdict')} on {len(claims)}",
        "undominated": [table.label(name) for name in undominated(summary.numbers)],
        "content": content,
        "own": {
            table.label(name): row["settings"]
            for name, row in content["methods"].items()
            if row["settings"]
        },
    }


def _remark(row: Row) -> str:
    if row.died:
        return f"broke down in {row.died} of {count(len(row.cells), 'cell')}"
    return "trained on all tasks at once" if row.method.joint else ""


def _cells(summary: Summary, texts: pd.DataFrame, name: str) -> list[tuple[str, float, bool]]:
    """Text and value of each column, and whether it is the best that is printed."""
    cells = []
    for column in texts.columns:
        values = summary.numbers[column]
        rivals = values[competing(summary.table)].dropna()
        best = rivals.idxmax() if NUMBERS[column].better == "high" else rivals.idxmin()
        wins = (
            len(rivals) > 1
            and NUMBERS[column].better is not None
            and name in rivals
            and texts[column][name] == texts[column][best]
        )
        cells.append((texts[column][name], values[name], wins))
    return cells


def _matrix(row: Row) -> list[list[float]] | None:
    """[moment, place]: the mean score on the k-th task of the order, before and after each task."""
    matrices = [np.array(cell.scores["accuracy"], dtype=np.float64) for cell in row.block]
    in_order = [matrix[:, cell.order] for matrix, cell in zip(matrices, row.block, strict=True)]
    mean = np.mean(in_order, axis=0)
    return None if row.returns or not np.isfinite(mean).all() else mean.tolist()
