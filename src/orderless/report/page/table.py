"""The page's table: texts to print, values to sort by, and which entries are the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..tables import MISSING, decimal, percent, seen_variance

UPPER_BOUND = "joint"  # sees all tasks at once, so it is no competitor

Entry = dict[str, Any]


class TableColumn(NamedTuple):
    """One column: its heading, what an entry sorts by and reads as, and which end is better."""

    heading: str
    explanation: str
    value: Callable[[Entry], float | None]
    write: Callable[[Entry], str]
    unit: str = ""
    better: str | None = None  # "high", "low" or neither
    honour: str | None = None  # what the best row of this column is called


def table_data(summary: dict[str, Any]) -> dict[str, Any]:
    """The table of a summary."""
    return build_table(_columns(summary["score_kind"]), summary["methods"], bound=UPPER_BOUND)


def build_table(
    columns: list[TableColumn], entries: dict[str, Entry], bound: str | None = None
) -> dict[str, Any]:
    """Columns and rows; ``row["best"]`` says per column whether nobody is better.

    Args:
        entries: one per method; the columns read them, and ``died`` and ``cells`` are counts of
            runs.
        bound: the method that competes with nobody.
    """
    rows: list[dict[str, Any]] = [
        {
            "method": name,
            "values": [column.value(entry) for column in columns],
            "texts": [column.write(entry) for column in columns],
            "died": entry["died"],
            "cells": entry["cells"],
            "bound": name == bound,
        }
        for name, entry in entries.items()
    ]
    most = max((row["cells"] for row in rows if not row["bound"]), default=0)
    for row in rows:
        row["fewer"] = row["cells"] < most
    winners = [_winner(rows, place, column.better) for place, column in enumerate(columns)]
    for row in rows:
        # Equal as printed is equal: a difference nobody can see crowns nobody.
        row["best"] = [
            _competes(row) and text == winner
            for text, winner in zip(row["texts"], winners, strict=True)
        ]
    heads = [
        {
            key: getattr(column, key)
            for key in ("heading", "explanation", "unit", "better", "honour")
        }
        for column in columns
    ]
    return {"columns": heads, "rows": rows}


def _competes(row: dict[str, Any]) -> bool:
    """Whether a row can win: training that broke down leaves scores that hardly vary, and fewer
    runs than the others' may have been the easier ones.
    """
    return not (row["bound"] or row["died"] or row["fewer"])


def _winner(rows: list[dict[str, Any]], place: int, better: str | None) -> str | None:
    """How the best value of a column is printed; None where there is nothing to win."""
    rivals = [row for row in rows if _competes(row) and row["values"][place] is not None]
    if better is None or len(rivals) < 2:
        return None
    choose = max if better == "high" else min
    return choose(rivals, key=lambda row: row["values"][place])["texts"][place]


def thousandths(value: float | None) -> str:
    """A variance in units of 1/1000, so that the column aligns; exactly nothing is a plain 0."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    return f"{1000 * value:.2f}" if value >= 5e-6 else "<0.01"


def _columns(score_kind: str) -> list[TableColumn]:
    fractions = score_kind == "accuracy"
    number = percent if fractions else decimal

    def score(
        heading: str, name: str, explanation: str, better: str, honour: str | None = None
    ) -> TableColumn:
        return TableColumn(
            heading,
            explanation,
            lambda entry: entry[name],
            lambda entry: number(entry[name]),
            "%" if fractions else "",
            better,
            honour,
        )

    def variance(
        heading: str, name: str, explanation: str, honour: str | None = None
    ) -> TableColumn:
        def value(entry: Entry) -> float | None:
            return seen_variance(entry, name)

        return TableColumn(
            heading,
            explanation,
            value,
            lambda entry: thousandths(value(entry)),
            "× 10⁻³",
            "low",
            honour,
        )

    def interval(entry: Entry) -> str:
        return " – ".join(map(number, entry["interval"])) if entry["orders"] > 1 else MISSING

    return [
        score(
            "average",
            "average",
            "Mean over tasks, orders and seeds after the last task. A filter's score is the "
            "weighted mean of its particles' own scores.",
            "high",
            "highest average",
        ),
        TableColumn(
            "95 % interval",
            "Bootstrap interval of the average over orders.",
            lambda entry: entry["interval"][0] if entry["orders"] > 1 else None,
            interval,
            "%" if fractions else "",
        ),
        score(
            "by logits",
            "average_logits",
            "The average when the particles' outputs are averaged before deciding.",
            "high",
        ),
        score(
            "by probs",
            "average_probs",
            "The average when the particles' probabilities are averaged before deciding.",
            "high",
        ),
        score(
            "worst order",
            "worst_order",
            "The average under the order that suited the method least.",
            "high",
        ),
        variance(
            "order variance",
            "order_variance",
            "Variance over orders while the seed is held fixed: what order-sensitivity means.",
            "lowest order variance",
        ),
        variance(
            "seed variance",
            "seed_variance",
            "Variance over seeds while the order is held fixed.",
        ),
        variance("total variance", "variance", "Variance over orders and seeds together."),
        score(
            "forgetting",
            "forgetting",
            "The best score a task ever had minus its score at the end.",
            "low",
        ),
        TableColumn(
            "ESS",
            "Effective sample size at the end: how many particles still count.",
            lambda entry: entry["ess_final"],
            lambda entry: MISSING if entry["ess_final"] is None else f"{entry['ess_final']:.1f}",
        ),
        TableColumn(
            "seeds × orders",
            "How many runs the row stands on.",
            lambda entry: entry["seeds"] * entry["orders"],
            lambda entry: f"{entry['seeds']} × {entry['orders']}",
        ),
    ]
