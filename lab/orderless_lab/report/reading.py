"""A summary prepared for readers: a headline, rows by average, no rows without an effect."""

from dataclasses import replace

from orderless.text import small

from .columns import ENOUGH_ORDERS, WRITERS, all_columns, row_label, seen_variance
from .summary import MethodSummary, Summary

UPPER_BOUND = "joint"  # sees all tasks at once, so it does not compete
SINGLE = ("gd", "bc", "ppo")  # one plain network
FILTERS = ("wpf", "bc+wpf", "ppo+wpf")  # the paper's filter alone


def readable(summary: Summary) -> Summary:
    """Rows by average, best first; rows that equal a plain method become a note."""
    idle = _idle(summary)
    rows = [(name, entry) for name, entry in summary.methods.items() if name not in idle]
    notes = [
        f"{row_label(name, summary.methods)} ({name}) is not shown: every figure of it is that of "
        f"{row_label(plain, summary.methods)}, so at these settings it does nothing."
        for name, plain in idle.items()
    ]
    methods = dict(sorted(rows, key=lambda row: -row[1].average))
    return replace(summary, methods=methods, notes=[*summary.notes, *notes])


def _idle(summary: Summary) -> dict[str, str]:
    """Methods whose printed row equals that of a plain method -> that method."""
    columns, entries = all_columns(summary), summary.methods.items()
    rows = {name: tuple(column.text(entry) for column in columns) for name, entry in entries}
    plain = {rows[name]: name for name in (*SINGLE, *FILTERS) if name in rows}
    others = {name: row for name, row in rows.items() if name not in (*SINGLE, *FILTERS)}
    return {name: plain[row] for name, row in others.items() if row in plain}


def competing(summary: Summary) -> dict[str, MethodSummary]:
    """The rows that may be called the best: all runs finished, none of them broke down.

    The scores of training that broke down hardly vary, and missing runs may be the harder ones.
    """
    rows = {name: entry for name, entry in summary.methods.items() if name != UPPER_BOUND}
    most = max((entry.cells for entry in rows.values()), default=0)
    return {name: e for name, e in rows.items() if not e.died and e.cells == most}


def telling_pair(summary: Summary) -> list[str]:
    """The two methods to compare first: the best, and a plain one."""
    names = list(readable(summary).methods)
    best = next((name for name in names if name in competing(summary)), names[0])
    others = [name for name in (*SINGLE, *FILTERS, names[-1]) if name in names and name != best]
    return [best, *others[:1]] if others else [best, best]


def headline(summary: Summary) -> str:
    """The result in one sentence: the best row, the paper's filter and a single network."""
    methods = readable(summary).methods
    best, _ = telling_pair(summary)
    rivals = [name for name in (*FILTERS, *SINGLE) if name in methods]
    parts = [_result(name, summary) for name in rivals if name != best]
    names = list(methods)
    higher = [row_label(name, methods) for name in names[: names.index(best)]]
    title = f"Highest average{' except ' if higher else ''}{' and '.join(higher)}: "
    parts.insert(0, f"{title if len(methods) > 1 else ''}{_result(best, summary)}")
    averages = [methods[name].by_order for name in rivals]
    shared = set.intersection(*map(set, averages)) if len(rivals) == 2 else set()
    if shared:  # a count, not a verdict
        filtered, single = averages
        above = sum(filtered[order] > single[order] for order in shared)
        few = ", too few to tell them apart" if len(shared) < ENOUGH_ORDERS else ""
        orders = f"{above} of {len(shared)} orders{few}"
        parts.append(f"the filter is above the single network in {orders}")
    return "; ".join(parts) + "."


def _result(name: str, summary: Summary) -> str:
    entry, returns = summary.methods[name], summary.returns
    score = WRITERS["return" if returns else "score"](entry.average) + ("" if returns else " %")
    variance = seen_variance(entry, "order_variance")
    all_orders = "both" if entry.orders == 2 else f"all {entry.orders}"
    steady = {None: "", 0.0: f" (the same in {all_orders} orders)"}
    words = steady.get(variance, f" (order variance {small(variance)})")
    return f"{row_label(name, summary.methods)} {score}{words}"
