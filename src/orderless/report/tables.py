"""A summary as text, Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from .paper import benchmark_label, method_label

Kind = Literal["text", "markdown", "csv", "latex", "json"]
MISSING = "-"


class Column(NamedTuple):
    """One column: its heading, and how an entry of ``summary["methods"]`` is written in it."""

    heading: str
    write: Callable[[dict[str, Any]], str]


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal."""
    return MISSING if value is None else f"{100 * value:.1f}"


def small(value: float | None) -> str:
    """A variance: two significant digits, and a plain 0 for exactly nothing."""
    if value is None:
        return MISSING
    return "0" if value == 0 else f"{value:.2g}"


# What a variance is over.
VARIED = {
    "variance": ("orders", "seeds"),
    "order_variance": ("orders",),
    "seed_variance": ("seeds",),
    "normalized_variance": ("orders", "seeds"),
    "normalized_order_variance": ("orders",),
}


def seen_variance(entry: dict[str, Any], name: str) -> float | None:
    """A row's variance; None, and not 0, where what it is over did not vary."""
    return entry[name] if any(entry[varied] > 1 for varied in VARIED[name]) else None


def decimal(value: float | None) -> str:
    """Any other number, three decimals."""
    return MISSING if value is None else f"{value:.3f}"


def row_label(name: str, methods: dict[str, Any]) -> str:
    """A method's name, and how many orders it has where others have more."""
    orders = methods[name]["orders"]
    if orders == max(entry["orders"] for entry in methods.values()):
        return method_label(name)
    return f"{method_label(name)} ({orders} {'order' if orders == 1 else 'orders'})"


def columns_of(score_kind: str) -> list[Column]:
    """What the printed tables show; CSV and JSON hold everything."""
    score = percent if score_kind == "accuracy" else decimal

    def interval(entry: dict[str, Any]) -> str:
        return MISSING if entry["orders"] < 2 else ", ".join(map(score, entry["interval"]))

    def variance(heading: str, name: str) -> Column:
        return Column(heading, lambda e: small(seen_variance(e, name)))

    columns = [
        Column("average", lambda e: score(e["average"])),
        Column("95 % interval", interval),
        Column("logits", lambda e: score(e["average_logits"])),
        Column("probs", lambda e: score(e["average_probs"])),
        variance("variance", "variance"),
        variance("of order", "order_variance"),
        variance("of seed", "seed_variance"),
        variance("norm. var.", "normalized_variance"),
        variance("norm. order", "normalized_order_variance"),
        Column("worst order", lambda e: score(e["worst_order"])),
        Column("forgetting", lambda e: score(e["forgetting"])),
        Column("ESS", lambda e: MISSING if e["ess_final"] is None else f"{e['ess_final']:.1f}"),
        Column("seeds x orders", lambda e: f"{e['seeds']} x {e['orders']}"),
    ]
    # returns are not made by averaging logits, and dividing by their mean makes no sense near 0
    senseless = () if score_kind == "accuracy" else ("logits", "norm. var.", "norm. order")
    return [column for column in columns if column.heading not in senseless]


def title(summary: dict[str, Any]) -> str:
    """One line that names the table."""
    parts = [benchmark_label(summary["benchmark"]), summary["scenario"], summary["preset"]]
    return ", ".join([*parts, *learning_rate(summary)])


def learning_rate(summary: dict[str, Any]) -> list[str]:
    """That of the optimizer in use, in words; nothing where methods have their own."""
    settings = summary.get("settings", {})
    rate = settings.get("adam_lr" if settings.get("optimizer") == "adam" else "lr")
    return [] if rate is None else [f"learning rate {rate:g}"]


def _rows(summary: dict[str, Any], columns: list[Column]) -> list[list[str]]:
    return [
        [name, *(column.write(entry) for column in columns)]
        for name, entry in summary["methods"].items()
    ]


def format_table(summary: dict[str, Any], kind: Kind = "text") -> str:
    """One summary in one of the five forms; the text ends with a line break.

    Scores are percentages in text, Markdown and LaTeX, fractions in CSV and JSON.
    """
    writers: dict[str, Callable[[dict[str, Any]], str]] = {
        "text": _text,
        "markdown": _markdown,
        "csv": lambda one: format_csv([one]),
        "latex": _latex,
        "json": lambda one: format_json([one]),
    }
    if kind not in writers:
        raise ValueError(f"kind must be one of {', '.join(writers)}, got {kind!r}")
    return writers[kind](summary)


def _text(summary: dict[str, Any]) -> str:
    columns = columns_of(summary["score_kind"])
    headings = ["method", *(column.heading for column in columns)]
    rows = _rows(summary, columns)
    try:
        table = _rich_table(headings, rows)
    except ImportError:
        table = _plain_table(headings, rows)
    notes = "".join(f"Note: {note}\n" for note in summary["notes"])
    return f"{title(summary)}\n{table}{notes}"


def _rich_table(headings: list[str], rows: list[list[str]]) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        # Two lines per heading keep the whole table within an ordinary terminal.
        table.add_column("\n".join(heading.rsplit(" ", 1)), justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    # Wide enough for every cell: the text goes to a file, a wrapped number helps nobody.
    console = Console(file=io.StringIO(), width=400, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def _plain_table(headings: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    rule = ["-" * width for width in widths]
    lines = []
    for row in [headings, rule, *rows]:
        first, *others = (
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines) + "\n"


def markdown_table(headings: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A Markdown table whose first ``left`` columns are flush left and the others flush right."""
    rule = [":--" if place < left else "--:" for place in range(len(headings))]
    lines = ["| " + " | ".join(row) + " |" for row in (headings, rule, *rows)]
    return "\n".join(lines) + "\n"


def _markdown(summary: dict[str, Any]) -> str:
    columns = columns_of(summary["score_kind"])
    rows = [[f"`{name}`", *others] for name, *others in _rows(summary, columns)]
    table = markdown_table(["method", *(column.heading for column in columns)], rows)
    notes = "".join(f"\n- {note}" for note in summary["notes"])
    return f"### {title(summary)}\n\n{table}{notes and notes + chr(10)}"


def _latex(summary: dict[str, Any]) -> str:
    def escape(text: str) -> str:
        for character in "&%_#":
            text = text.replace(character, f"\\{character}")
        return text

    columns = columns_of(summary["score_kind"])
    lines = [
        f"% {title(summary)}",
        r"\begin{tabular}{l" + "r" * len(columns) + "}",
        r"\toprule",
        " & ".join(["Method", *(escape(column.heading) for column in columns)]) + r" \\",
        r"\midrule",
    ]
    for name, *numbers in _rows(summary, columns):
        cells = [_latex_number(number) for number in numbers]
        lines.append(" & ".join([escape(method_label(name)), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_number(text: str) -> str:
    if text == MISSING:
        return "--"
    if "e" in text:
        digits, exponent = text.split("e")
        return rf"${digits}\cdot 10^{{{int(exponent)}}}$"
    return text.replace("x", r"$\times$")


def format_csv(summaries: list[dict[str, Any]]) -> str:
    """Every plain number of every method, one row each, scores as fractions; empty for null.

    Durations are left out: two runs that agree in every score have the same file.
    """
    keys = ["benchmark", "scenario", "preset"]
    names = [
        key
        for key, value in next(iter(summaries[0]["methods"].values())).items()
        if not isinstance(value, list | dict) and not key.endswith("duration")
    ]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*keys, "method", *names, "interval_low", "interval_high"])
    for summary in summaries:
        for method, entry in summary["methods"].items():
            values = [entry[name] for name in names] + list(entry["interval"])
            writer.writerow([*(summary[key] for key in keys), method, *values])
    return stream.getvalue()


def format_json(summaries: list[dict[str, Any]]) -> str:
    """One summary as an object, several as a list; never NaN or infinity."""
    content = summaries[0] if len(summaries) == 1 else summaries
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
