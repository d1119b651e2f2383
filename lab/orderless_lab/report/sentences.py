"""The result of a table in two sentences, and notes on what its rows can and cannot show."""

import pandas as pd

from ..text import count
from .columns import written
from .frame import Row, Table, shared_settings

LITTLE = 1 / 3  # of the way from untrained to perfect, right after training
ENOUGH_ORDERS = 6  # to tell two rows apart by counting orders


def competing(table: Table) -> list[str]:
    """The rows that may be called the best.

    Left out are rows that see all tasks at once, that broke down (their scores hardly vary), and
    that lack runs (these may be the harder ones).
    """
    rows = {name: row for name, row in table.rows.items() if not row.method.joint}
    most = max((len(row.cells) for row in rows.values()), default=0)
    return [name for name, row in rows.items() if not row.died and len(row.cells) == most]


def undominated(numbers: pd.DataFrame) -> list[str]:
    """The rows for which no other is as high and as steady, and better in one of both."""
    points = numbers.sort_values("average", ascending=False)[["average", "task_sd"]].dropna()
    found = []
    for name, average, sd in points.itertuples():
        as_good = (points["average"] >= average) & (points["task_sd"] <= sd)
        better = (points["average"] > average) | (points["task_sd"] < sd)
        if not (as_good & better).any():
            found.append(str(name))
    return found


def headline(table: Table, numbers: pd.DataFrame) -> str:
    """The best row; then the first weighted row beside the same method without weights."""
    order = list(numbers.sort_values("average", ascending=False).index)
    best = next((name for name in order if name in competing(table)), order[0])
    above = " and ".join(table.label(name) for name in order[: order.index(best)])
    start = f"Highest average{f' except for {above}' if above else ''}: "
    text = f"{start if len(order) > 1 else ''}{_result(table, best, numbers)}."
    for name, row in table.rows.items():
        single = table.rival(name) if row.method.weighted else None
        if single is not None:
            results = [_result(table, each, numbers) for each in (name, single) if each != best]
            return f"{text} {'; '.join(results)}{_compared(table, name, single)}."
    return text


def _result(table: Table, name: str, numbers: pd.DataFrame) -> str:
    row = table.rows[name]
    score = written("score", numbers["average"][name], row.returns)
    text = f"{table.label(name)} {score}{'' if row.returns else '%'}"
    sd = numbers["task_sd"][name]
    if pd.isna(sd):
        return text
    if sd == 0:
        orders = "both" if len(row.orders) == 2 else f"all {len(row.orders)}"
        return f"{text} (the same in {orders} orders)"
    unit = "" if row.returns else " points"
    return f"{text} (sd of a task over orders {written('points', sd, row.returns)}{unit})"


def _compared(table: Table, left: str, right: str) -> str:
    """In how many orders the left row is higher: a count, not a verdict."""
    pair = table.rows[left].beside(table.rows[right])
    if len(pair[0].orders) < 2:
        return ""
    ours, theirs = (row.scores.mean(axis=(0, 2)) for row in pair)
    few = ", too few to tell them apart" if len(ours) < ENOUGH_ORDERS else ""
    above = (ours > theirs).sum()
    return f"; {table.label(left)} is higher in {above} of {count(len(ours), 'order')}{few}"


def notes(table: Table, numbers: pd.DataFrame) -> list[str]:
    """What a reader must know before comparing rows."""
    rows = table.rows
    found = [note for name, row in rows.items() for note in _about(table.label(name), row)]
    found += _little_learned(table)
    found += _different_settings(table)
    above = numbers.index[numbers["average"] + numbers["margin"] > 1]
    if len(above) and not table.returns:
        which = ", ".join(table.label(name) for name in above)
        found.append(
            f"± 95% passes 100% ({which}): Student's interval knows no largest score; it ends at "
            "100%."
        )
    if len({(tuple(row.seeds), tuple(row.orders)) for row in rows.values()}) > 1:
        most = max(len(row.cells) for row in rows.values())
        fewer = ", ".join(table.label(name) for name in rows if len(rows[name].cells) < most)
        which = f" ({fewer})" if fewer else ""
        found.append(f"The rows do not all stand on the same seeds and orders{which}.")
    if len({cell.expert.digest for cell in table.cells if cell.expert}) > 1:
        found.append("The cells do not all clone the same expert.")
    alike = numbers.fillna(-1).groupby(list(numbers.columns.drop("particles"))).groups
    for names in alike.values():
        if len(names) > 1:
            labels = " and ".join(table.label(name) for name in names)
            found.append(f"{labels} have the same numbers: at these settings they do the same.")
    return found


def _about(label: str, row: Row) -> list[str]:
    """What must be known about one row."""
    found = []
    if len(row.cells) > len(row.block):
        found.append(
            f"{label}: {len(row.cells)} cells are finished; the row uses the largest complete "
            f"block, {len(row.seeds)} seeds x {len(row.orders)} orders."
        )
    if row.died:
        found.append(
            f"{label}: in {row.died} of {len(row.cells)} cells no particle kept a finite loss; "
            "scores are those of the networks as they stood before that step."
        )
    return found


def _little_learned(table: Table) -> list[str]:
    """A note on the rows that knew little of a task right after training on it."""
    found = []
    for name, row in table.rows.items():
        learned = row.mean("just_learned")
        before = row.mean("untrained")
        if learned - before < LITTLE * (1 - before) and not (row.returns or row.method.joint):
            found.append(
                f"{table.label(name)} knew {100 * learned:.0f}% (before: {100 * before:.0f}%)"
            )
    words = (
        "of a task right after training on it: raise lr or epochs before reading its forgetting."
    )
    return [f"{', '.join(found)} {words}"] if found else []


def _different_settings(table: Table) -> list[str]:
    """A note for each setting that is not the same in all rows, as in tables of several runs."""
    rows_by_value: dict[str, dict[str, list[str]]] = {}
    for name, row in table.rows.items():
        for key, value in shared_settings(row.cells).items():
            rows_by_value.setdefault(key, {}).setdefault(str(value), []).append(table.label(name))
    found = []
    for key, rows in rows_by_value.items():
        texts = [f"{value} ({', '.join(names)})" for value, names in rows.items()]
        if len(texts) > 1:
            found.append(f"{key} is {' and '.join(texts)}.")
    return found
