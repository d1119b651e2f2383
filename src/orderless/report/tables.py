"""A summary as text, Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Literal, NamedTuple

from ..escaping import csv_cell, markdown, markdown_code, printable
from ..storage.typed import as_json
from .paper import benchmark_label, method_label
from .summary import MethodSummary, ReportError, Summary

Kind = Literal["text", "markdown", "csv", "latex", "json"]
MISSING = "-"
# What each variance is over.
VARIED: dict[str, tuple[str, ...]] = {
    "variance": ("orders", "seeds"),
    "order_variance": ("orders",),
    "seed_variance": ("seeds",),
    "normalized_variance": ("orders", "seeds"),
    "normalized_order_variance": ("orders",),
}


class Column(NamedTuple):
    """One column: its heading, and how a row is written in it."""

    heading: str
    write: Callable[[MethodSummary], str]


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal."""
    return MISSING if value is None else f"{100 * value:.1f}"


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with three decimals."""
    return MISSING if value is None else f"{value:.{digits}f}"


def small(value: float | None) -> str:
    """A variance: two significant digits, and a plain 0 for exactly nothing."""
    if value is None:
        return MISSING
    return "0" if value == 0 else f"{value:.2g}"


def seen_variance(entry: MethodSummary, name: str) -> float | None:
    """A row's variance; None, and not 0, where what it is over did not vary."""
    varied = any(getattr(entry, count) > 1 for count in VARIED[name])
    value: float | None = getattr(entry, name)
    return value if varied else None


def seen_interval(entry: MethodSummary, write: Callable[[float], str], dash: str = ", ") -> str:
    """A row's interval; nothing where there was one order only."""
    return MISSING if entry.orders < 2 else dash.join(map(write, entry.interval))


def row_label(name: str, methods: dict[str, MethodSummary]) -> str:
    """A method's name, and how many orders it has where others have more."""
    orders = methods[name].orders
    if orders == max(entry.orders for entry in methods.values()):
        return method_label(name)
    return f"{method_label(name)} ({orders} {'order' if orders == 1 else 'orders'})"


def columns_of(summary: Summary) -> list[Column]:
    """What the printed tables show; CSV and JSON hold everything."""
    score = decimal if summary.returns else percent

    def variance(heading: str, name: str) -> Column:
        return Column(heading, lambda entry: small(seen_variance(entry, name)))

    columns = [
        Column("average", lambda e: score(e.average)),
        Column("95 % interval", lambda e: seen_interval(e, score)),
        Column("logits", lambda e: score(e.average_logits)),
        Column("probs", lambda e: score(e.average_probs)),
        variance("variance", "variance"),
        variance("of order", "order_variance"),
        variance("of seed", "seed_variance"),
        variance("norm. var.", "normalized_variance"),
        variance("norm. order", "normalized_order_variance"),
        Column("worst order", lambda e: score(e.worst_order)),
        Column("forgetting", lambda e: score(e.forgetting)),
        Column("ESS", lambda e: decimal(e.ess_final, 1)),
        Column("seeds x orders", lambda e: f"{e.seeds} x {e.orders}"),
    ]
    # returns are not made by averaging logits, and dividing by their mean makes no sense near 0
    senseless = ("logits", "norm. var.", "norm. order") if summary.returns else ()
    return [column for column in columns if column.heading not in senseless]


def title(summary: Summary) -> str:
    """One line that names the table."""
    parts = [benchmark_label(summary.benchmark), summary.scenario, summary.preset]
    return ", ".join([*parts, *learning_rate(summary)])


def learning_rate(summary: Summary) -> list[str]:
    """That of the optimizer in use, in words; nothing where methods have their own."""
    adam = summary.settings.get("optimizer") == "adam"
    rate = summary.settings.get("adam_lr" if adam else "lr")
    return [f"learning rate {rate:g}"] if isinstance(rate, int | float) else []


def format_table(summary: Summary, kind: Kind = "text") -> str:
    """One summary in one of the five forms; the text ends with a line break.

    Scores are percentages in text, Markdown and LaTeX, fractions in CSV and JSON. A name that holds
    markup, a formula or control characters is written so that it does nothing.
    """
    writers: dict[str, Callable[[Summary], str]] = {
        "text": _text,
        "markdown": _markdown,
        "csv": lambda one: format_csv([one]),
        "latex": _latex,
        "json": lambda one: format_json([one]),
    }
    if kind not in writers:
        raise ValueError(f"kind must be one of {', '.join(writers)}, got {kind!r}")
    return writers[kind](summary)


def _cells(summary: Summary, name: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows; `name` writes a method's name."""
    columns = columns_of(summary)
    return ["method", *(column.heading for column in columns)], [
        [name(method), *(column.write(entry) for column in columns)]
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
    headings, rows = _cells(summary, printable)
    # Two lines per heading keep the whole table within an ordinary terminal.
    table = _tabulated(["\n".join(text.rsplit(" ", 1)) for text in headings], rows, "simple")
    notes = "".join(f"Note: {printable(note)}\n" for note in summary.notes)
    return f"{printable(title(summary))}\n{table}{notes}"


def _latex(summary: Summary) -> str:
    headings, rows = _cells(summary, lambda method: printable(method_label(method)))
    table = _tabulated(["Method", *headings[1:]], rows, "latex_booktabs")  # escapes names
    table = re.sub(r"\b(\d\.?\d?)e([+-])0*(\d+)\b", r"$\1\\cdot 10^{\2\3}$", table)
    return f"% {printable(title(summary))}\n{table.replace('{+', '{')}"


def markdown_table(headings: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A Markdown table whose first `left` columns are flush left and the others flush right.

    Without padding: a number that changes changes its own line of a page and no other.
    """
    rule = [":--" if place < left else "--:" for place in range(len(headings))]
    lines = ["| " + " | ".join(row) + " |" for row in (headings, rule, *rows)]
    return "\n".join(lines) + "\n"


def _markdown(summary: Summary) -> str:
    notes = "".join(f"\n- {markdown(note)}" for note in summary.notes)
    table = markdown_table(*_cells(summary, markdown_code))
    return f"### {markdown(title(summary))}\n\n{table}{notes and notes + chr(10)}"


def format_csv(summaries: list[Summary]) -> str:
    """Every plain number of every method, one row each, scores as fractions; empty for null.

    Durations are left out: two runs that agree in every score have the same file.
    """
    names = [
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
