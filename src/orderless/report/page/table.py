"""The table of the page: texts, values to sort by, and the best entries of each column."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...writing import MISSING
from ..columns import Column, R

UNITS = {"score": "%", "variance": "× 10⁻³"}


def build_table(
    columns: Sequence[Column[R]],
    entries: Mapping[str, R],
    runs: Mapping[str, tuple[int, int]],
    rivals: Collection[str],
    bound: str | None = None,
) -> dict[str, Any]:
    """The columns and rows as the page's script reads them.

    An entry is `best` if none of the `rivals` is better. `runs`: method -> (runs that broke down,
    runs). `bound`: a method that is an upper bound and is not ranked.
    """
    texts = {n: [c.text(e, variance=thousandths) for c in columns] for n, e in entries.items()}
    values = {name: [column.value(entry) for column in columns] for name, entry in entries.items()}
    winners: list[str | None] = []
    for place, column in enumerate(columns):
        known = [(v, texts[n][place]) for n in rivals if (v := values[n][place]) is not None]
        choose = max if column.better == "high" else min
        # Entries are compared as printed: a difference that is not shown decides nothing.
        winners.append(choose(known)[1] if column.better and len(known) > 1 else None)
    shown = ("heading", "explanation", "better", "honour")
    return {
        "columns": [
            {"unit": UNITS.get(column.kind, ""), **{name: getattr(column, name) for name in shown}}
            for column in columns
        ],
        "rows": [
            {
                "method": name,
                "values": values[name],
                "texts": texts[name],
                "best": [
                    name in rivals and text == winner
                    for text, winner in zip(texts[name], winners, strict=True)
                ],
                "died": runs[name][0],
                "cells": runs[name][1],
                "bound": name == bound,
            }
            for name in entries
        ],
    }


def thousandths(value: float | None) -> str:
    """A variance in units of 1/1000, so that the column aligns; exactly 0 is written as 0."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    return f"{1000 * value:.2f}" if value >= 5e-6 else "<0.01"
