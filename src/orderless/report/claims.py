"""The paper's claims, judged one by one on our own measurements.

A comparison holds when the paired bootstrap interval over orders lies wholly on the claimed side
of 0, and does not hold otherwise (the evidence says whether the opposite was seen or no
difference). It is not decidable when a row is missing or fewer than ``MINIMUM_ORDERS`` orders are
shared: with four orders, all on one side by chance is no rarity. "Less variable" is judged twice,
on the total variance (order and seed vary together, the paper's likely reading) and on the order
variance alone, which is what order-sensitivity means.

Mean returns in games, which few can afford to measure under many orders, are judged from 3 orders
on: with fewer than ``MINIMUM_ORDERS`` by Student's interval, which is as wide as so few orders are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from .cells import Cell, by_place, complete_block, score_grid
from .paper import CHANCE, TABLE_1, TABLE_2, benchmark_label, method_label, published

MINIMUM_ORDERS = 5
STUDENT = {3: 4.303, 4: 3.182}  # 97.5 % quantiles for so many orders
NEAR_CHANCE = 0.03
ROUNDING = 1e-12  # a difference below this is floating-point noise, not a finding

Measure = Literal["mean", "variance", "order_variance"]
Claim = dict[str, Any]
Array = NDArray[np.float64]

MEASURE_NAMES = {
    "mean": "average",
    "variance": "total variance",
    "order_variance": "order variance",
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


def judge_claims(summary: dict[str, Any], cells: list[Cell]) -> list[Claim]:
    """The claims of the paper's tables on one (benchmark, scenario, preset); empty for other
    benchmarks.

    Each is ``{"claim", "measure", "holds": True | False | "not decidable", "evidence",
    "difference", "interval", "paper"}``; ``paper`` says in numbers what the paper's own table
    shows.
    """
    if summary["benchmark"] in TABLE_2 and summary["score_kind"] == "return":
        comparisons = _policy_comparisons(summary["benchmark"])
        return [_judge(comparison, summary, cells) for comparison in comparisons]
    if summary["benchmark"] not in TABLE_1 or summary["score_kind"] != "accuracy":
        return []
    claims = [_judge(comparison, summary, cells) for comparison in _comparisons()]
    claims.append(_judge_chance(summary))
    if summary["benchmark"] == "splitmnist":
        claims.append(_judge_best(summary, cells))
    return claims


def _judge(comparison: Comparison, summary: dict[str, Any], cells: list[Cell]) -> Claim:
    left, right, measure = comparison.left, comparison.right, comparison.measure
    claim: Claim = {
        "claim": comparison.text,
        "measure": MEASURE_NAMES[measure],
        "holds": "not decidable",
        "evidence": "",
        "difference": None,
        "interval": None,
        "paper": _paper_evidence(summary, left, right, measure),
    }
    returns = summary["score_kind"] == "return"
    missing = [name for name in (left, right) if name not in summary["methods"]]
    if missing:
        return claim | {"evidence": f"Not measured: {', '.join(missing)}."}
    first, second = by_place(cells, left), by_place(cells, right)
    seeds, orders = complete_block(first.keys() & second.keys())
    few = len(orders) < MINIMUM_ORDERS
    needed = min(STUDENT) if returns and measure == "mean" else MINIMUM_ORDERS
    if len(orders) < needed:
        return claim | {
            "evidence": f"{left} and {right} share {_count(len(orders), 'order')}; "
            f"a verdict needs {needed}."
        }
    scores = [score_grid(group, seeds, orders) for group in (first, second)]
    assert scores[0] is not None and scores[1] is not None
    if few:
        difference = _students_difference(scores[0], scores[1])
    else:
        difference = metrics.paired_difference(scores[0], scores[1], measure)
    statistic = {
        "mean": metrics.average,
        "variance": metrics.variance,
        "order_variance": metrics.order_variance,
    }[measure]
    values = [statistic(score) for score in scores if score is not None]
    holds, opposite = difference.low > ROUNDING, difference.high < -ROUNDING
    if measure != "mean":
        holds, opposite = opposite, holds
    verdict = "" if holds else "; the opposite is seen" if opposite else "; no difference is shown"
    by_seed = [
        statistic(scores[0][[row]]) - statistic(scores[1][[row]]) for row in range(len(seeds))
    ]
    if measure != "variance" and holds and min(by_seed) < 0 < max(by_seed):
        # The interval is over orders at the seeds that were run: it cannot see luck with a seed.
        shown = ", ".join(_signed(value, measure, returns) for value in by_seed)
        verdict = f"; its sign changes from seed to seed ({shown})"
    return claim | {
        "holds": holds,
        "difference": difference.value,
        "interval": [difference.low, difference.high],
        "evidence": f"{left} {_number(values[0], measure, returns)}, "
        f"{right} {_number(values[1], measure, returns)}; "
        f"difference {_difference(difference, measure, returns)} over "
        f"{_count(len(seeds), 'seed')} x {_count(len(orders), 'order')}{verdict}.",
    }


def _judge_chance(summary: dict[str, Any]) -> Claim:
    benchmark, scenario = summary["benchmark"], summary["scenario"]
    chance = CHANCE[benchmark].get(scenario)
    reported = TABLE_1[benchmark]["bootstrap"][0]
    claim: Claim = {
        "claim": "Baseline particle filter is near chance",
        "measure": MEASURE_NAMES["mean"],
        "holds": "not decidable",
        "evidence": "Not measured: bootstrap.",
        "difference": None,
        "interval": None,
        "paper": f"{100 * reported:.1f} %",
    }
    entry = summary["methods"].get("bootstrap")
    if entry is None or chance is None:
        return claim
    low, high = entry["interval"]
    if entry["orders"] < MINIMUM_ORDERS:
        count = _count(entry["orders"], "order")
        return claim | {"evidence": f"bootstrap has {count}; a verdict needs {MINIMUM_ORDERS}."}
    return claim | {
        "holds": abs(entry["average"] - chance) <= NEAR_CHANCE,
        "difference": entry["average"] - chance,
        "interval": [low - chance, high - chance],
        "evidence": f"bootstrap {100 * entry['average']:.1f} % "
        f"[{100 * low:.1f}, {100 * high:.1f}], chance {100 * chance:.1f} %; "
        f"near means within {100 * NEAR_CHANCE:.0f} points.",
    }


def _judge_best(summary: dict[str, Any], cells: list[Cell]) -> Claim:
    """ "WPF outperforms all other methods": against the best of the paper's other rows."""
    others = [name for name in TABLE_1["splitmnist"] if name != "wpf"]
    missing = [name for name in ("wpf", *others) if name not in summary["methods"]]
    present = [name for name in others if name not in missing]
    best = max(present, key=lambda name: summary["methods"][name]["average"], default="lwf+wpf")
    claim = _judge(Comparison("wpf", best, "mean"), summary, cells)
    table = TABLE_1["splitmnist"]
    claim |= {
        "claim": f"Weighted particle filter outperforms all other methods on "
        f"{benchmark_label('splitmnist')}",
        "paper": f"{100 * table['wpf'][0]:.1f} % against {100 * table['lwf+wpf'][0]:.1f} % "
        "for LwF + WPF: contradicted by its own table",
    }
    # One better row refutes the claim; only all rows together can support it.
    if claim["holds"] is True and missing:
        claim |= {"holds": "not decidable"}
        claim["evidence"] += f" Not measured: {', '.join(missing)}."
    return claim


def _students_difference(first: Array, second: Array) -> metrics.Difference:
    """The difference of means with Student's 95 % interval over 3 or 4 orders."""
    by_order = metrics.order_averages(first) - metrics.order_averages(second)
    half = STUDENT[len(by_order)] * by_order.std(ddof=1) / len(by_order) ** 0.5
    mean = float(by_order.mean())
    return metrics.Difference(mean, mean - float(half), mean + float(half))


def _paper_evidence(summary: dict[str, Any], left: str, right: str, measure: Measure) -> str | None:
    returns = summary["score_kind"] == "return"
    table = published(summary["benchmark"], summary["scenario"])
    if measure == "order_variance" or left not in table or right not in table:
        return None
    if measure == "mean":
        digits = (f"{table[name][0]:.2f}" for name in (left, right))
        percents = (f"{100 * table[name][0]:.1f} %" for name in (left, right))
        return " against ".join(digits if returns else percents)
    variances = f"{table[left][1]:.3f} against {table[right][1]:.3f}"
    return variances if returns else f"{variances} (normalized)"


def _number(value: float, measure: Measure, returns: bool = False) -> str:
    if measure != "mean":
        return f"{value:.2g}"
    return f"{value:.3f}" if returns else f"{100 * value:.1f} %"


def _signed(value: float, measure: Measure, returns: bool = False) -> str:
    if measure != "mean":
        return f"{value:+.2g}"
    return f"{value:+.3f}" if returns else f"{100 * value:+.2f}"


def _difference(difference: metrics.Difference, measure: Measure, returns: bool) -> str:
    value, low, high = (_signed(number, measure, returns) for number in difference)
    unit = " points" if measure == "mean" and not returns else ""
    return f"{value}{unit} [{low}, {high}]"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
