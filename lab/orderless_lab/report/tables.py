"""A summary as text, Markdown, CSV, LaTeX and JSON."""

import csv
import io
import json
import re
import textwrap
from collections.abc import Callable
from dataclasses import fields
from typing import Literal, get_args

from orderless.text import csv_cell, printable
from orderless_lab.storage.typed import as_json

from ..paper import method_label
from ..text import markdown, markdown_code, markdown_table
from .columns import columns_of, title
from .reading import headline, readable
from .summary import MethodSummary, ReportError, Summary

Kind = Literal["text", "markdown", "csv", "latex", "json"]


def format_table(summary: Summary, kind: Kind = "text") -> str:
    """One summary in one of five formats; the text ends with a line break.

    CSV and JSON hold every method and every number, with scores as fractions. The other formats
    are for readers, with scores as percentages. Markup, formulas and control characters in names
    are escaped.
    """
    return format_tables([summary], kind)


def format_tables(summaries: list[Summary], kind: Kind) -> str:
    """Several summaries in one of the formats of `format_table`."""
    together = {"csv": format_csv, "json": format_json}
    if kind in together:
        return together[kind](summaries)
    writers = {"text": _text, "markdown": _markdown, "latex": _latex}
    if kind not in writers:
        raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
    return "\n".join(map(writers[kind], summaries))


def _cells(summary: Summary, name: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows; `name` writes a method's name."""
    columns = columns_of(summary)
    return ["method", *(column.heading for column in columns)], [
        [name(method), *(column.text(entry) for column in columns)]
        for method, entry in summary.methods.items()
    ]


def _tabulated(headings: list[str], rows: list[list[str]], form: str) -> str:
    try:
        from tabulate import tabulate  # type: ignore[import-untyped]
    except ImportError as error:
        raise ReportError(
            "Tables need tabulate; install it with `pip install 'orderless[report]'`."
        ) from error
    align = ["left", *["right"] * (len(headings) - 1)]
    options = {"tablefmt": form, "disable_numparse": True, "colalign": align}
    return f"{tabulate(rows, headings, **options)}\n"


def _text(summary: Summary) -> str:
    shown = readable(summary)
    headings, rows = _cells(shown, printable)
    # Two lines per heading keep the whole table within an ordinary terminal.
    table = _tabulated(["\n".join(text.rsplit(" ", 1)) for text in headings], rows, "simple")
    notes = "".join(f"Note: {printable(note)}\n" for note in shown.notes)
    sentence = textwrap.fill(printable(headline(summary)), 100)
    return f"{printable(title(summary))}\n{table}\n{sentence}\n{notes}"


def _latex(summary: Summary) -> str:
    headings, rows = _cells(readable(summary), lambda method: printable(method_label(method)))
    table = _tabulated(["Method", *headings[1:]], rows, "latex_booktabs")  # escapes names
    table = re.sub(r"\b(\d\.?\d?)e([+-])0*(\d+)\b", r"$\1\\cdot 10^{\2\3}$", table)
    return f"% {printable(title(summary))}\n{table.replace('{+', '{')}"


def _markdown(summary: Summary) -> str:
    shown = readable(summary)
    notes = "".join(f"\n- {markdown(note)}" for note in shown.notes)
    table = markdown_table(*_cells(shown, markdown_code))
    heading = f"### {markdown(title(summary))}\n\n{markdown(headline(summary))}"
    return f"{heading}\n\n{table}{notes and notes + chr(10)}"


def format_csv(summaries: list[Summary]) -> str:
    """One row per method with all its scalars, scores as fractions; null is empty."""
    names = [  # without durations, so that two runs with equal scores have equal files
        field.name
        for field in fields(MethodSummary)
        if not field.name.endswith("duration") and not str(field.type).startswith(("list", "dict"))
    ]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    keys = ["benchmark", "scenario", "preset", "method"]
    writer.writerow([*keys, *names, "interval_low", "interval_high"])
    for summary in summaries:
        for method, entry in summary.methods.items():
            values = [getattr(entry, name) for name in names]
            place = map(csv_cell, [*summary.table, method])
            writer.writerow([*place, *values, *entry.interval])
    return stream.getvalue()


def format_json(summaries: list[Summary]) -> str:
    """One summary as an object, several as a list; never NaN or infinity."""
    content = as_json(summaries[0] if len(summaries) == 1 else summaries)
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
