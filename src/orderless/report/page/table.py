"""The table of the page: texts, values to sort by, and the best entries of each column."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...writing import MISSING
from ..columns import Column, R

UNITS = {"score": "%", "variance": "× 10⁻³"}


@dataclass(frozen=True)
class Head:
    """A column; see `Column`."""

    heading: str
    explanation: str
    better: str | None
    honour: str | None
    unit: str


@dataclass(frozen=True)
class Row:
    """One method; `bound`: an upper bound, which is not ranked."""

    method: str
    values: list[float | None]
    texts: list[str]
    best: list[bool]
    died: int
    cells: int
    bound: bool


@dataclass(frozen=True)
class TableData:
    columns: list[Head]
    rows: list[Row]


def build_table(
    columns: Sequence[Column[R]],
    entries: Mapping[str, R],
    runs: Mapping[str, tuple[int, int]],
    rivals: Collection[str],
    bound: str | None = None,
) -> TableData:
    """The table of `entries`; an entry is `best` if none of the `rivals` is better.

    `runs`: method -> (runs that broke down, runs). `bound`: the method that is an upper bound.
    """
    texts = {n: [c.text(e, variance=thousandths) for c in columns] for n, e in entries.items()}
    values = {name: [column.value(entry) for column in columns] for name, entry in entries.items()}
    winners: list[str | None] = []
    for place, column in enumerate(columns):
        known = [(v, texts[n][place]) for n in rivals if (v := values[n][place]) is not None]
        choose = max if column.better == "high" else min
        # Entries are compared as printed: a difference that is not shown decides nothing.
        winners.append(choose(known)[1] if column.better and len(known) > 1 else None)
    heads = [
        Head(c.heading, c.explanation, c.better, c.honour, UNITS.get(c.kind, "")) for c in columns
    ]
    rows = [
        Row(
            name,
            values[name],
            texts[name],
            [name in rivals and t == w for t, w in zip(texts[name], winners, strict=True)],
            *runs[name],
            bound=name == bound,
        )
        for name in entries
    ]
    return TableData(heads, rows)


def thousandths(value: float | None) -> str:
    """A variance in units of 1/1000, so that the column aligns; exactly 0 is written as 0."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    return f"{1000 * value:.2f}" if value >= 5e-6 else "<0.01"
