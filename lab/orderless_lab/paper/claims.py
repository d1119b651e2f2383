"""The paper's claims, judged one by one on our own measurements.

A comparison holds if the paired 95% interval over orders and seeds lies wholly on the claimed side
of 0. It is not decided if a row is missing or broke off, or if the rows share fewer than
`MINIMUM_ORDERS` orders: four orders are often all on one side by chance. "Less variable" is judged
twice, on the total variance (probably the paper's) and on the order variance.

Mean returns in games, where orders are expensive, are judged from 3 orders on. A second interval,
`across`, treats the levels as a sample as well: it tells which effects on the game are excluded.

Plasticity is judged on the second half of each order by Student's interval over the orders' paired
differences, against PPO and against unweighted particles: what those keep as well is no effect of
the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from orderless import metrics

from ..text import count
from . import CHANCE, SINGLE, TABLE_1, benchmark_label, published

if TYPE_CHECKING:
    from orderless_lab.report.frame import Row, Table

MINIMUM_ORDERS = 5
FEWEST_ORDERS = 3  # of games
NEAR_CHANCE = 0.03
COMPETING = 0.01
ROUNDING = 1e-12  # smaller differences are rounding errors

Measure = Literal["average", "variance", "order_variance"]
MEASURES: tuple[Measure, ...] = ("average", "variance", "order_variance")
WITHOUT_WEIGHTS = {  # the paper's rows with weights -> the same method without
    "wpf": "gd",
    "ewc+wpf": "ewc",
    "lwf+wpf": "lwf",
    "si+wpf": "si",
    "bc+wpf": "bc",
    "ppo+wpf": "ppo",
    "ppo+trac+wpf": "ppo+trac",
    "ppo+ewc+wpf": "ppo+ewc",
}
ALSO_ABOVE = {
    "wpf": ("averaging", "bootstrap"),
    "bc+wpf": ("bc+averaging", "bc+bootstrap"),
    "ppo+wpf": ("ppo+averaging", "ppo+bootstrap", "ppo+ewc"),
}
PLASTIC = "ppo+wpf"  # whose plasticity is compared
PLASTICITY = {"return": "high", "dormant": "low", "effective_rank": "high"}  # which is better


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim and the verdict on it: `holds` is None, and `reason` says why, if it is not decided.

    `left` and `right` are the rows that are compared. `difference` has its 95% `interval` on these
    tasks, `across` that on other tasks in other orders; `excluded` tells whether the latter leaves
    out the paper's effect. `paper`: the figures of its own table.
    """

    claim: str
    left: str | None = None
    right: str | None = None
    measure: str
    paper: str | None = None
    holds: bool | None = None
    difference: float | None = None
    interval: list[float] | None = None
    across: list[float] | None = None
    excluded: bool | None = None
    reason: str | None = None


def judge_claims(table: Table) -> list[Claim]:
    """The verdicts on the paper's claims about its tables, and on weighted rows of others."""
    found = [compare(table, *pair) for pair in comparisons(table)]
    if table.benchmark in TABLE_1:
        found += [near_chance(table, "bootstrap"), near_chance(table, "gd"), front(table)]
    if table.benchmark == "splitmnist":
        found.append(best_of_all(table))
    if table.benchmark == "splitcifar100":
        found.append(competes(table))
    if table.benchmark == "procgen-lifelong":
        rivals = ("ppo", "ppo+averaging")
        found += [keeps_plasticity(table, rival, name) for rival in rivals for name in PLASTICITY]
    return found


def comparisons(table: Table) -> list[tuple[str, str, Measure]]:
    """(left, right, measure): the left row is above the right one, or varies less.

    Every weighted row is compared with the same method without weights. The paper also claims that
    its filter is above unweighted particles and the baseline.
    """
    theirs = published(table.benchmark, table.scenario)
    pairs: list[tuple[str, str, Measure]] = []
    for left, others in ALSO_ABOVE.items():
        pairs += [(left, right, "average") for right in others if left in theirs]
    bases = {name: base for name, base in WITHOUT_WEIGHTS.items() if name in theirs}
    for name, row in table.rows.items():
        base = table.rival(name)
        if row.method.weighted and base is not None:
            bases.setdefault(name, base)
    return pairs + [(name, base, measure) for name, base in bases.items() for measure in MEASURES]


def compare(table: Table, left: str, right: str, measure: Measure) -> Claim:
    """Whether the left row is above the right one, or varies less, by the paired interval."""
    mean = measure == "average"
    verb = "is above" if mean else "has lower variance than"
    claim = Claim(
        claim=f"{table.label(left)} {verb} {table.label(right)}",
        left=left,
        right=right,
        measure=measure,
        paper=_in_the_paper(table, left, right, measure),
    )
    needed = FEWEST_ORDERS if table.returns and mean else MINIMUM_ORDERS
    pair = shared(table, left, right, needed)
    if isinstance(pair, str):
        return replace(claim, reason=pair)
    ours, theirs = (row.scores for row in pair)
    if measure == "variance" and len(ours) == 2:
        reason = (
            f"{left} and {right} share two seeds, and two values hide how uncertain their variance "
            "is: a verdict on the total variance takes a third seed."
        )
        return replace(claim, reason=reason)
    difference = metrics.paired_difference(
        ours, theirs, "mean" if measure == "average" else measure
    )
    claim = decided(claim, difference, better="high" if mean else "low")
    if table.returns and mean and ours.shape[2] > 1:
        across = metrics.difference_across(ours, theirs)
        claim = replace(claim, across=[across.low, across.high])
        theirs_too = published(table.benchmark, table.scenario)
        if {left, right} <= theirs_too.keys():
            effect = theirs_too[left][0] - theirs_too[right][0]
            claim = replace(claim, excluded=not across.low <= effect <= across.high)
    return claim


def decided(claim: Claim, difference: metrics.Difference, better: str = "high") -> Claim:
    """The claim with its verdict: the whole interval must lie on the better side of 0."""
    value, low, high = difference
    holds = low > ROUNDING if better == "high" else high < -ROUNDING
    return replace(claim, holds=holds, difference=value, interval=[low, high])


def near_chance(table: Table, name: str) -> Claim:
    """Whether a row is within `NEAR_CHANCE` of what guessing gives."""
    claim = Claim(
        claim=f"{table.label(name)} is near chance",
        left=name,
        measure="near chance",
        paper=f"{TABLE_1[table.benchmark][name][0]:.1%}",
        reason=unfit(table, name),
    )
    chance = CHANCE[table.benchmark].get(table.scenario)
    if claim.reason or chance is None:
        return claim
    row = table.rows[name]
    if len(row.orders) < MINIMUM_ORDERS:
        return replace(claim, reason=_few(name, len(row.orders), MINIMUM_ORDERS))
    average = metrics.average(row.scores) - chance
    interval = [end - chance for end in metrics.interval(row.scores)]
    holds = abs(average) <= NEAR_CHANCE
    return replace(claim, holds=holds, difference=average, interval=interval)


def front(table: Table) -> Claim:
    """ "The bottom right of Figure 2 is dominated by WPF or X + WPF": of the paper's rows, those
    for which no other is both higher and steadier have weights."""
    theirs = TABLE_1[table.benchmark]
    claim = Claim(
        claim="Of the paper's rows, the bottom right of Figure 2 belongs to those with WPF",
        measure="front",
        reason=unfit(table, *theirs),
    )
    if claim.reason:
        return claim
    grids = {name: table.rows[name].scores for name in theirs}
    high = {name: metrics.average(scores) for name, scores in grids.items()}
    varied = {name: metrics.normalized_variance(scores) for name, scores in grids.items()}
    undefined = ", ".join(name for name in theirs if np.isnan(varied[name]))
    if undefined:
        words = f"No normalized variance, as the mean of a task is 0: {undefined}."
        return replace(claim, reason=words)
    beaten = {
        name
        for name in theirs
        if any(high[o] > high[name] and varied[o] < varied[name] for o in theirs)
    }
    holds = all(table.rows[name].method.weighted for name in theirs if name not in beaten)
    return replace(claim, holds=holds)


def competes(table: Table) -> Claim:
    """ "WPF competes with LwF on SplitCIFAR100": it is at most `COMPETING` below."""
    claim = compare(table, "wpf", "lwf", "average")
    words = f"{table.label('wpf')} competes with LwF on {benchmark_label('splitcifar100')}"
    holds = None if claim.interval is None else claim.interval[0] >= -COMPETING
    return replace(claim, claim=words, measure="competes", holds=holds)


def best_of_all(table: Table) -> Claim:
    """ "WPF outperforms all other methods": against the best of the paper's other rows."""
    theirs = TABLE_1["splitmnist"]
    missing = [name for name in theirs if name not in table.rows]
    averages = {
        name: metrics.average(table.rows[name].scores)
        for name in theirs
        if name in table.rows and name != "wpf"
    }
    best = max(averages, key=lambda name: averages[name], default="lwf+wpf")
    claim = replace(
        compare(table, "wpf", best, "average"),
        claim=f"{table.label('wpf')} outperforms all other methods on "
        f"{benchmark_label('splitmnist')}",
        measure="best",
        paper=f"{theirs['wpf'][0]:.1%} against {theirs['lwf+wpf'][0]:.1%} for LwF + WPF: "
        "contradicted by its own table",
    )
    # One better row refutes the claim; it takes all rows to support it.
    if claim.holds and missing:
        return replace(claim, holds=None, reason=f"Not measured: {', '.join(missing)}.")
    return claim


def keeps_plasticity(table: Table, right: str, measure: str) -> Claim:
    """Whether weights keep a measure of plasticity better in the second half of the order."""
    claim = Claim(
        claim=f"{table.label(PLASTIC)} keeps more plasticity than {table.label(right)}",
        left=PLASTIC,
        right=right,
        measure=measure,
        paper="figure 3" if right in SINGLE else None,
    )
    pair = shared(table, PLASTIC, right, FEWEST_ORDERS)
    if isinstance(pair, str):
        return replace(claim, reason=pair)
    ours, theirs = (late_plasticity(row, measure) for row in pair)
    # runs that share an order are not independent of each other: one value per order
    differences = (ours - theirs).mean(axis=0)
    if not np.isfinite(differences).all():
        return replace(claim, reason=f"Not recorded: {measure}.")
    return decided(claim, metrics.mean_interval(differences), better=PLASTICITY[measure])


def late_plasticity(row: Row, measure: str) -> np.ndarray:
    """[seed, order]: the mean of a measure over the second half of each order; NaN if unknown.

    "return", with curves, is the area under each level's curve: the score by place.
    """
    values = []
    for cell in row.block:
        by_place = cell.plasticity.get(measure, [])
        if measure == "return" and cell.curves is not None:
            by_place = [cell.scores["accuracy"][-1][task] for task in cell.order]
        late = np.array(by_place, dtype=np.float64)[len(by_place) - len(by_place) // 2 :]
        values.append(late.mean() if len(late) else np.nan)
    return np.reshape(values, (len(row.seeds), len(row.orders)))


def shared(table: Table, left: str, right: str, needed: int) -> tuple[Row, Row] | str:
    """Both rows on their common seeds and orders; or why they are not judged."""
    reason = unfit(table, left, right)
    if reason:
        return reason
    pair = table.rows[left].beside(table.rows[right])
    orders = len(pair[0].orders)
    return pair if orders >= needed else _few(f"{left} and {right}", orders, needed)


def _few(names: str, orders: int, needed: int) -> str:
    return f"{count(orders, 'common order')} of {names}: a verdict takes {needed}."


def unfit(table: Table, *names: str) -> str | None:
    """The reason why these rows cannot be judged (one is missing or broke off), or None."""
    missing = [name for name in names if name not in table.rows]
    if missing:
        return f"Not measured: {', '.join(missing)}."
    for name in names:
        row = table.rows[name]
        if row.died:
            return (
                f"In {row.died} of {len(row.cells)} cells of {name} no particle kept a finite "
                "loss: rows that broke off say nothing about the method."
            )
    return None


def _in_the_paper(table: Table, left: str, right: str, measure: Measure) -> str | None:
    rows = published(table.benchmark, table.scenario)
    if measure == "order_variance" or not {left, right} <= rows.keys():
        return None
    ours, theirs = (rows[name][measure == "variance"] for name in (left, right))
    if measure == "variance":
        return f"{ours:.3f} against {theirs:.3f}{'' if table.returns else ' (normalized)'}"
    form = ".2f" if table.returns else ".1%"
    return f"{ours:{form}} against {theirs:{form}}"


def evidence(claim: Claim, returns: bool) -> str:
    """What a verdict stands on, in one sentence for readers."""
    if claim.difference is None or claim.interval is None:
        return claim.reason or ""
    factor, form, unit = (1, "+.3f", "") if returns else (100, "+.1f", " points")
    if "variance" in claim.measure or claim.measure in PLASTICITY:
        factor, form, unit = (1, "+.2g", "")
    low, high = (f"{factor * end:{form}}" for end in claim.interval)
    text = f"Difference {factor * claim.difference:{form}}{unit}, 95% interval {low} to {high}"
    if not claim.holds and claim.interval[0] <= 0 <= claim.interval[1]:
        text = text.replace("Difference", "No difference was found:")
    if claim.across:
        ends = " to ".join(f"{end:+.3f}" for end in claim.across)
        text += f"; on other levels, too, {ends}"
        if claim.excluded is not None:
            seen = "excluded" if claim.excluded else "not excluded"
            text += f", where an effect of the paper's size is {seen}"
    return f"{text}.{f' {claim.reason}' if claim.reason else ''}"
