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
from . import SINGLE, published

if TYPE_CHECKING:
    from orderless_lab.report.frame import Row, Table

MINIMUM_ORDERS = 5
FEWEST_ORDERS = 3  # of games
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
    "wpf": ("averaging", "bootstrap", "lwf", "lwf+wpf"),
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
    left: str
    right: str
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
    if table.benchmark == "procgen-lifelong":
        rivals = ("ppo", "ppo+averaging")
        found += [keeps_plasticity(table, rival, name) for rival in rivals for name in PLASTICITY]
    return found


def comparisons(table: Table) -> list[tuple[str, str, Measure]]:
    """(left, right, measure): the left row is above the right one, or varies less.

    Every weighted row is compared with the same method without weights. The paper also claims that
    its filter is above unweighted particles, the baseline and others that its table has below.
    """
    theirs = published(table.benchmark, table.variant)
    pairs: list[tuple[str, str, Measure]] = []
    for left, others in ALSO_ABOVE.items():
        # its table denies that the filter is above everything, which is no claim of it then
        pairs += [
            (left, right, "average")
            for right in others
            if {left, right} <= theirs.keys() and theirs[left][0] > theirs[right][0]
        ]
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
        theirs_too = published(table.benchmark, table.variant)
        if {left, right} <= theirs_too.keys():
            effect = theirs_too[left][0] - theirs_too[right][0]
            claim = replace(claim, excluded=not across.low <= effect <= across.high)
    return claim


def decided(claim: Claim, difference: metrics.Difference, better: str = "high") -> Claim:
    """The claim with its verdict: the whole interval must lie on the better side of 0."""
    value, low, high = difference
    holds = low > ROUNDING if better == "high" else high < -ROUNDING
    return replace(claim, holds=holds, difference=value, interval=[low, high])


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
        final = cell.final()
        if measure == "return" and cell.curves is not None and final is not None:
            by_place = final[cell.order].tolist()
        late = np.array(by_place, dtype=np.float64)[len(by_place) - len(by_place) // 2 :]
        values.append(late.mean() if len(late) else np.nan)
    return np.reshape(values, (len(row.seeds), len(row.orders)))


def shared(table: Table, left: str, right: str, needed: int) -> tuple[Row, Row] | str:
    """Both rows on their common seeds and orders; or why they are not judged."""
    names = (left, right)
    missing = [name for name in names if name not in table.rows]
    if missing:
        return f"Not measured: {', '.join(missing)}."
    died = [f"{table.rows[name].died} cells of {name}" for name in names if table.rows[name].died]
    if died:
        return f"No particle kept a finite loss in {' and '.join(died)}."
    pair = table.rows[left].beside(table.rows[right])
    orders = len(pair[0].orders)
    if orders < needed:
        common = count(orders, "common order")
        return f"{common} of {left} and {right}: a verdict takes {needed}."
    return pair


def _in_the_paper(table: Table, left: str, right: str, measure: Measure) -> str | None:
    rows = published(table.benchmark, table.variant)
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
    points = claim.measure == "average" and not returns

    def write(value: float) -> str:
        return f"{100 * value:+.1f}" if points else f"{value:+.2g}"

    low, high = claim.interval
    seen = "No difference was found" if low <= 0 <= high else "Difference"
    unit = " points" if points else ""
    text = f"{seen}: {write(claim.difference)}{unit}, 95% interval {write(low)} to {write(high)}"
    if claim.across is not None:
        text += f"; on other levels, too, {' to '.join(map(write, claim.across))}"
    if claim.excluded is not None:
        text += f"; an effect of the paper's size is {'' if claim.excluded else 'not '}excluded"
    return f"{text}."
