"""The paper's claims, judged one by one on our own measurements.

A comparison holds when the paired bootstrap interval over orders and seeds lies wholly on the
claimed side of 0, and does not hold otherwise (the evidence says whether the opposite was seen or
no difference). It is not decidable when a row is missing or broke off, or when fewer than
``MINIMUM_ORDERS`` orders are shared: with four orders, all on one side by chance is no rarity.
"Less variable" is judged twice, on the total variance (order and seed vary together, the paper's
likely reading) and on the order variance alone, which is what order-sensitivity means.

Mean returns in games, which few can afford to measure under many orders, are judged from 3 orders
on: with fewer than ``MINIMUM_ORDERS`` by Student's interval, which is as wide as so few orders are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..experiments.record import CellRecord
from .blocks import by_place, complete_block, score_grid
from .paper import CHANCE, TABLE_1, TABLE_2, benchmark_label, method_label, published
from .summary import Claim, Summary

MINIMUM_ORDERS = 5
STUDENT = {3: 4.303, 4: 3.182}  # 97.5 % quantiles, by the number of orders
NEAR_CHANCE = 0.03
ROUNDING = 1e-12  # a difference below this is floating-point noise, not a finding

Measure = Literal["mean", "variance", "order_variance"]
Array = NDArray[np.float64]


class Statistic(NamedTuple):
    """A measure's name in words, and how it is computed from S[seed, order, task]."""

    name: str
    statistic: Callable[[Array], float]


MEASURES: dict[Measure, Statistic] = {
    "mean": Statistic("average", metrics.average),
    "variance": Statistic("total variance", metrics.variance),
    "order_variance": Statistic("order variance", metrics.order_variance),
}


@dataclass(frozen=True)
class Comparison:
    """``left`` is claimed to have the higher mean, or the lower variance, than ``right``."""

    left: str
    right: str
    measure: Measure

    @property
    def text(self) -> str:
        better = "is above" if self.measure == "mean" else "has lower variance than"
        return f"{method_label(self.left)} {better} {method_label(self.right)}"


def _comparisons() -> Iterator[Comparison]:
    for other in ("averaging", "bootstrap", "gd"):
        yield Comparison("wpf", other, "mean")
    yield Comparison("wpf", "gd", "variance")
    yield Comparison("wpf", "gd", "order_variance")
    for base in ("ewc", "lwf", "si"):
        yield Comparison(f"{base}+wpf", base, "mean")
        yield Comparison(f"{base}+wpf", base, "variance")
        yield Comparison(f"{base}+wpf", base, "order_variance")


def _policy_comparisons(benchmark: str) -> Iterator[Comparison]:
    base = "bc" if benchmark == "procgen-bc" else "ppo"
    for other in ("averaging", "bootstrap"):
        yield Comparison(f"{base}+wpf", f"{base}+{other}", "mean")
    if base == "ppo":
        yield Comparison("ppo+wpf", "ppo+ewc", "mean")
    for plain in (base,) if base == "bc" else ("ppo", "ppo+trac", "ppo+ewc"):
        yield Comparison(f"{plain}+wpf", plain, "mean")
        yield Comparison(f"{plain}+wpf", plain, "variance")
        yield Comparison(f"{plain}+wpf", plain, "order_variance")


def judge_claims(summary: Summary, cells: Sequence[CellRecord]) -> list[Claim]:
    """The claims of the paper's tables on one table of ours; empty for other benchmarks."""
    judge, benchmark = Judge(summary, cells), summary.benchmark
    if summary.returns and benchmark in TABLE_2:
        return [judge.compare(comparison) for comparison in _policy_comparisons(benchmark)]
    if summary.returns or benchmark not in TABLE_1:
        return []
    claims = [judge.compare(comparison) for comparison in _comparisons()]
    claims.append(judge.near_chance())
    if benchmark == "splitmnist":
        claims.append(judge.best_of_all())
    return claims


class Evidence(NamedTuple):
    """What was measured of two methods on the cells that both have."""

    values: tuple[float, float]
    difference: metrics.Difference
    seeds: int
    orders: int


def holds(comparison: Comparison, difference: metrics.Difference) -> bool | None:
    """True, False where the opposite is seen, None where no difference is shown."""
    above, below = difference.low > ROUNDING, difference.high < -ROUNDING
    if comparison.measure != "mean":
        above, below = below, above
    return True if above else False if below else None


@dataclass(frozen=True)
class Judge:
    """Measures, then decides, then puts it into words."""

    summary: Summary
    cells: Sequence[CellRecord]

    def compare(self, comparison: Comparison) -> Claim:
        undecided = Claim(
            claim=comparison.text,
            measure=MEASURES[comparison.measure].name,
            holds="not decidable",
            evidence="",
            paper=self._in_the_paper(comparison),
        )
        found = self._measure(comparison)
        if isinstance(found, str):
            return replace(undecided, evidence=found)
        verdict = holds(comparison, found.difference)
        return replace(
            undecided,
            holds=verdict is True,
            difference=found.difference.value,
            interval=[found.difference.low, found.difference.high],
            evidence=self._sentence(comparison, found, verdict),
        )

    def near_chance(self) -> Claim:
        chance = CHANCE[self.summary.benchmark].get(self.summary.scenario)
        claim = Claim(
            claim="Baseline particle filter is near chance",
            measure=MEASURES["mean"].name,
            holds="not decidable",
            evidence="Not measured: bootstrap.",
            paper=f"{100 * TABLE_1[self.summary.benchmark]['bootstrap'][0]:.1f} %",
        )
        entry = self.summary.methods.get("bootstrap")
        if entry is None or chance is None:
            return claim
        if entry.orders < MINIMUM_ORDERS:
            count = _count(entry.orders, "order")
            few = f"bootstrap has {count}; a verdict needs {MINIMUM_ORDERS}."
            return replace(claim, evidence=few)
        low, high = entry.interval
        return replace(
            claim,
            holds=abs(entry.average - chance) <= NEAR_CHANCE,
            difference=entry.average - chance,
            interval=[low - chance, high - chance],
            evidence=f"bootstrap {100 * entry.average:.1f} % "
            f"[{100 * low:.1f}, {100 * high:.1f}], chance {100 * chance:.1f} %; "
            f"near means within {100 * NEAR_CHANCE:.0f} points.",
        )

    def best_of_all(self) -> Claim:
        """ "WPF outperforms all other methods": against the best of the paper's other rows."""
        table = TABLE_1["splitmnist"]
        missing = [name for name in table if name not in self.summary.methods]
        present = [name for name in table if name not in ("wpf", *missing)]
        best = max(present, key=lambda name: self.summary.methods[name].average, default="lwf+wpf")
        claim = replace(
            self.compare(Comparison("wpf", best, "mean")),
            claim="Weighted particle filter outperforms all other methods on "
            f"{benchmark_label('splitmnist')}",
            paper=f"{100 * table['wpf'][0]:.1f} % against {100 * table['lwf+wpf'][0]:.1f} % "
            "for LwF + WPF: contradicted by its own table",
        )
        # One better row refutes the claim; only all rows together can support it.
        if claim.holds is True and missing:
            unseen = f"{claim.evidence} Not measured: {', '.join(missing)}."
            return replace(claim, holds="not decidable", evidence=unseen)
        return claim

    def _measure(self, comparison: Comparison) -> Evidence | str:
        """The evidence, or why there is none."""
        left, right, measure = comparison.left, comparison.right, comparison.measure
        missing = [name for name in (left, right) if name not in self.summary.methods]
        if missing:
            return f"Not measured: {', '.join(missing)}."
        for name in (left, right):
            entry = self.summary.methods[name]
            if entry.died:
                return (
                    f"In {entry.died} of {entry.cells} cells of {name} no particle kept a finite "
                    "loss: rows that broke off say nothing about the method."
                )
        ours, theirs = by_place(self.cells, left), by_place(self.cells, right)
        seeds, orders = complete_block(ours.keys() & theirs.keys())
        needed = min(STUDENT) if self.summary.returns and measure == "mean" else MINIMUM_ORDERS
        if len(orders) < needed:
            shared = _count(len(orders), "order")
            return f"{left} and {right} share {shared}; a verdict needs {needed}."
        first, second = (score_grid(cells, seeds, orders) for cells in (ours, theirs))
        assert first is not None and second is not None  # load_run has checked every final row
        few = len(orders) < MINIMUM_ORDERS
        paired = metrics.paired_difference
        difference = _students(first, second) if few else paired(first, second, measure)
        statistic = MEASURES[measure].statistic
        return Evidence(
            (statistic(first), statistic(second)),
            difference,
            len(seeds),
            len(orders),
        )

    def _sentence(self, comparison: Comparison, found: Evidence, verdict: bool | None) -> str:
        mean = comparison.measure == "mean"

        def number(value: float) -> str:
            if not mean:
                return f"{value:.2g}"
            return f"{value:.3f}" if self.summary.returns else f"{100 * value:.1f} %"

        def signed(value: float) -> str:
            if not mean:
                return f"{value:+.2g}"
            return f"{value:+.3f}" if self.summary.returns else f"{100 * value:+.2f}"

        seen = {True: "", False: "; the opposite is seen", None: "; no difference is shown"}
        value, low, high = map(signed, found.difference)
        unit = " points" if mean and not self.summary.returns else ""
        ours, theirs = map(number, found.values)
        return (
            f"{comparison.left} {ours}, {comparison.right} {theirs}; difference "
            f"{value}{unit} [{low}, {high}] over {_count(found.seeds, 'seed')} x "
            f"{_count(found.orders, 'order')}{seen[verdict]}."
        )

    def _in_the_paper(self, comparison: Comparison) -> str | None:
        table = published(self.summary.benchmark, self.summary.scenario)
        if comparison.measure == "order_variance" or not {
            comparison.left,
            comparison.right,
        } <= set(table):
            return None
        ours, theirs = table[comparison.left], table[comparison.right]
        if comparison.measure == "variance":
            normalized = "" if self.summary.returns else " (normalized)"
            return f"{ours[1]:.3f} against {theirs[1]:.3f}{normalized}"
        if self.summary.returns:
            return f"{ours[0]:.2f} against {theirs[0]:.2f}"
        return f"{100 * ours[0]:.1f} % against {100 * theirs[0]:.1f} %"


def _students(first: Array, second: Array) -> metrics.Difference:
    """The difference of means with Student's 95 % interval over 3 or 4 orders."""
    by_order = metrics.order_averages(first) - metrics.order_averages(second)
    half = STUDENT[len(by_order)] * by_order.std(ddof=1) / len(by_order) ** 0.5
    mean = float(by_order.mean())
    return metrics.Difference(mean, mean - float(half), mean + float(half))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
