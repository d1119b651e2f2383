"""Summaries as text, Markdown, CSV, LaTeX and JSON, by pandas."""

import json
import textwrap
from typing import Literal, get_args

import pandas as pd

from orderless.errors import csv_cell, printable

from ..suites.registry import label_of
from ..text import MISSING, count, markdown, markdown_code
from .columns import NUMBERS, written
from .frame import Table, shared_settings
from .summary import Summary

Kind = Literal["text", "markdown", "csv", "latex", "json"]


def format_table(summaries: Summary | list[Summary], kind: Kind = "text") -> str:
    """One or several summaries in one of five formats; the text ends with a line break.

    CSV and JSON hold every number, with scores as fractions. The other formats are for readers,
    with scores in percent. Markup, formulas and control characters in names are escaped.
    """
    found = [summaries] if isinstance(summaries, Summary) else summaries
    if kind == "json":
        contents = [summary.as_json() for summary in found]
        content = contents[0] if len(contents) == 1 else contents
        return json.dumps(content, indent=1, allow_nan=False) + "\n"
    if kind == "csv":
        lines = pd.concat([_lines(summary) for summary in found])
        return lines.to_csv(index=False, lineterminator="\n")
    writers = {"text": _text, "markdown": _markdown, "latex": _latex}
    if kind not in writers:
        raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
    return "\n".join(writers[kind](summary) for summary in found)


def readable(summary: Summary) -> pd.DataFrame:
    """The shown numbers as text, the highest average first; without columns that say nothing."""
    ranked = summary.numbers.sort_values("average", ascending=False)
    frame = pd.DataFrame(index=ranked.index)
    for name, number in NUMBERS.items():
        if number.shown:
            returns = summary.table.returns
            frame[name] = [written(number.unit, value, returns) for value in ranked[name]]
    return frame.loc[:, (frame != MISSING).any()]


def title(table: Table) -> str:
    """What was measured, and where: in one line."""
    settings = shared_settings(table.cells)
    rate = settings.get("adam_lr" if settings.get("optimizer") == "adam" else "lr")
    rates = [f"learning rate {rate:g}"] if isinstance(rate, int | float) else []
    orders = max(len(row.orders) for row in table.rows.values())
    seeds = max(len(row.seeds) for row in table.rows.values())
    extent = f"{count(orders, 'order')} x {count(seeds, 'seed')}"
    parts = [label_of(table.benchmark), table.variant, table.preset, *rates, extent]
    return ", ".join(parts)


def units(table: Table) -> str:
    """The units of the columns."""
    return "returns" if table.returns else "scores in %; ±, sd and forgetting in points"


def _headed(summary: Summary) -> pd.DataFrame:
    return readable(summary).rename(columns=lambda name: NUMBERS[name].heading)


def _text(summary: Summary) -> str:
    frame = _headed(summary).rename(index=printable).rename_axis(columns="method")
    body = f"{frame.to_string()}\n({units(summary.table)})"
    notes = [f"Note: {note}" for note in summary.notes]
    sentences = [textwrap.fill(printable(text), 100) for text in (summary.headline, *notes)]
    return "\n".join([printable(title(summary.table)), body, "", *sentences, ""])


def _markdown(summary: Summary) -> str:
    frame = _headed(summary).rename(index=markdown_code).rename_axis("method")
    align = ["left", *["right"] * len(frame.columns)]
    body = frame.to_markdown(disable_numparse=True, colalign=align)
    notes = "".join(f"- {markdown(note)}\n" for note in summary.notes)
    heading = f"### {markdown(title(summary.table))}\n\n{markdown(summary.headline)}"
    return f"{heading}\n\n{body}\n\nUnits: {units(summary.table)}.\n\n{notes}"


def _latex(summary: Summary) -> str:
    frame = _headed(summary)
    labels = [printable(summary.table.label(name)) for name in frame.index]
    frame.insert(0, "method", labels)
    align = f"l{'r' * (len(frame.columns) - 1)}"
    body = frame.to_latex(index=False, escape=True, column_format=align)
    return f"% {printable(title(summary.table))} ({units(summary.table)})\n{body}"


def _lines(summary: Summary) -> pd.DataFrame:
    """All numbers, a line per row; without durations, so that equal scores have equal files."""
    rows = summary.table.rows
    lines = summary.numbers.assign(
        orders=[len(row.orders) for row in rows.values()],
        seeds=[len(row.seeds) for row in rows.values()],
        died=[row.died for row in rows.values()],
    )
    lines.insert(0, "method", [csv_cell(name) for name in rows])
    for key in ("preset", "variant", "benchmark"):
        lines.insert(0, key, csv_cell(getattr(summary.table, key)))
    return lines
