"""The page's table: texts to print, values to sort by, and which entries are the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from ..summary import MethodSummary, Summary
from ..tables import MISSING, decimal, percent, seen_interval, seen_variance

UPPER_BOUND = "joint"  # sees all tasks at once, so it is no competitor

R = TypeVar("R")
Value = Callable[[R], float | None]


@dataclass(frozen=True)
class Head:
    """One column: which end of it, "high" or "low", is better; what its best row is called."""

    heading: str
    explanation: str
    better: str | None = None
    honour: str | None = None
    unit: str = ""


class Column(NamedTuple, Generic[R]):
    """A column, what a row sorts by in it, and what it reads as."""

    head: Head
    value: Value[R]
    write: Callable[[R], str]


@dataclass(frozen=True)
class Row:
    """One method; `bound`, `died` and `fewer` are reasons to win nothing."""

    method: str
    values: list[float | None]
    texts: list[str]
    died: int
    cells: int
    bound: bool
    fewer: bool = False
    best: list[bool] = field(default_factory=list)

    @property
    def competes(self) -> bool:
        """Training that broke down leaves scores that hardly vary, and fewer runs than the others'
        may have been the easier ones.
        """
        return not (self.bound or self.died or self.fewer)


@dataclass(frozen=True)
class TableData:
    columns: list[Head]
    rows: list[Row]


def build_table(
    columns: list[Column[R]],
    entries: Mapping[str, R],
    runs: Mapping[str, tuple[int, int]],
    bound: str | None = None,
) -> TableData:
    """Columns and rows; `best` says per column whether nobody is better.

    Args:
        runs: method -> (runs that broke down, runs).
        bound: the method that competes with nobody.
    """
    most = max((runs[name][1] for name in entries if name != bound), default=0)
    rows = [
        Row(
            name,
            [column.value(entry) for column in columns],
            [column.write(entry) for column in columns],
            *runs[name],
            bound=name == bound,
            fewer=runs[name][1] < most,
        )
        for name, entry in entries.items()
    ]
    winners = [_winner(rows, place, column.head.better) for place, column in enumerate(columns)]
    # Equal as printed is equal: a difference nobody can see crowns nobody.
    return TableData(
        [column.head for column in columns],
        [
            replace(
                row,
                best=[
                    row.competes and text == winner
                    for text, winner in zip(row.texts, winners, strict=True)
                ],
            )
            for row in rows
        ],
    )


def _winner(rows: list[Row], place: int, better: str | None) -> str | None:
    """How the best value of a column is printed; None where there is nothing to win."""
    rivals = [(row.values[place], row.texts[place]) for row in rows if row.competes]
    known = [(value, text) for value, text in rivals if value is not None]
    if better is None or len(known) < 2:
        return None
    choose = max if better == "high" else min
    return choose(known, key=lambda rival: rival[0])[1]


def score_column(head: Head, value: Value[R], *, returns: bool) -> Column[R]:
    """An accuracy in percent, or a return."""
    write = decimal if returns else percent
    unit = "" if returns else "%"
    return Column(replace(head, unit=unit), value, lambda entry: write(value(entry)))


def variance_column(head: Head, value: Value[R]) -> Column[R]:
    """A variance in units of 1/1000, so that the column aligns."""
    return Column(replace(head, unit="× 10⁻³"), value, lambda entry: thousandths(value(entry)))


def thousandths(value: float | None) -> str:
    """In units of 1/1000; exactly nothing is a plain 0."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    return f"{1000 * value:.2f}" if value >= 5e-6 else "<0.01"


def summary_table(summary: Summary) -> TableData:
    """The table of a summary."""
    runs = {name: (entry.died, entry.cells) for name, entry in summary.methods.items()}
    columns = summary_columns(summary.returns)
    return build_table(columns, summary.methods, runs, bound=UPPER_BOUND)


def summary_columns(returns: bool) -> list[Column[MethodSummary]]:
    def score(value: Value[MethodSummary], *head: str) -> Column[MethodSummary]:
        return score_column(Head(*head), value, returns=returns)

    def variance(name: str, *head: str) -> Column[MethodSummary]:
        return variance_column(Head(*head), lambda entry: seen_variance(entry, name))

    unit = "" if returns else "%"
    return [
        score(lambda e: e.average, "average", AVERAGE, "high", "highest average"),
        Column(
            Head("95 % interval", "Bootstrap interval of the average over orders.", unit=unit),
            lambda e: e.interval[0] if e.orders > 1 else None,
            lambda e: seen_interval(e, decimal if returns else percent, " – "),
        ),
        score(lambda e: e.average_logits, "by logits", MIXED.format("outputs"), "high"),
        score(lambda e: e.average_probs, "by probs", MIXED.format("probabilities"), "high"),
        score(lambda e: e.worst_order, "worst order", WORST_ORDER, "high"),
        variance(
            "order_variance",
            "order variance",
            "Variance over orders while the seed is held fixed: what order-sensitivity means.",
            "low",
            "lowest order variance",
        ),
        variance("seed_variance", "seed variance", SEED_VARIANCE, "low"),
        variance("variance", "total variance", "Variance over orders and seeds together.", "low"),
        score(lambda e: e.forgetting, "forgetting", FORGETTING, "low"),
        Column(Head("ESS", ESS), lambda e: e.ess_final, lambda e: decimal(e.ess_final, 1)),
        Column(
            Head("seeds × orders", "How many runs the row stands on."),
            lambda e: e.seeds * e.orders,
            lambda e: f"{e.seeds} × {e.orders}",
        ),
    ]


AVERAGE = (
    "Mean over tasks, orders and seeds after the last task. A filter's score is the weighted mean "
    "of its particles' own scores."
)
MIXED = "The average when the particles' {} are averaged before deciding."
WORST_ORDER = "The average under the order that suited the method least."
SEED_VARIANCE = "Variance over seeds while the order is held fixed."
FORGETTING = "The best score a task ever had minus its score at the end."
ESS = "Effective sample size at the end: how many particles still count."
