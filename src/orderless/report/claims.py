"""The paper's claims, judged one by one on our own measurements.

A comparison holds when the paired bootstrap interval over orders lies wholly on the claimed side
of 0, and does not hold otherwise (the evidence says whether the opposite was seen or no
difference). It is not decidable when a row is missing or fewer than ``MINIMUM_ORDERS`` orders are
shared: with four orders, all on one side by chance is no rarity. "Less variable" is judged twice,
on the total variance (order and seed vary together, the paper's likely reading) and on the order
variance alone, which is what order-sensitivity means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from orderless import metrics
from orderless.report.cells import Cell, by_place, complete_block, score_grid
from orderless.report.paper import CHANCE, TABLE_1, benchmark_label, method_label

MINIMUM_ORDERS = 5
NEAR_CHANCE = 0.03
ROUNDING = 1e-12  # a difference below this is floating-point noise, not a finding

Measure = Literal["mean", "variance", "order_variance"]
Claim = dict[str, Any]

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


def judge_claims(summary: dict[str, Any], cells: list[Cell]) -> list[Claim]:
    """The claims of the paper's Table 1 on one (benchmark, scenario, preset); empty for other
    benchmarks.

    Each is ``{"claim", "measure", "holds": True | False | "not decidable", "evidence",
    "difference", "interval", "paper"}``; ``paper`` says in numbers what the paper's own table
    shows.
    """
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
        "paper": _paper_evidence(summary["benchmark"], left, right, measure),
    }
    missing = [name for name in (left, right) if name not in summary["methods"]]
    if missing:
        return claim | {"evidence": f"Not measured: {', '.join(missing)}."}
    first, second = by_place(cells, left), by_place(cells, right)
    seeds, orders = complete_block(first.keys() & second.keys())
    if len(orders) < MINIMUM_ORDERS:
        return claim | {
            "evidence": f"{left} and {right} share {_count(len(orders), 'order')}; "
            f"a verdict needs {MINIMUM_ORDERS}."
        }
    scores = [score_grid(group, seeds, orders) for group in (first, second)]
    assert scores[0] is not None and scores[1] is not None
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
        shown = ", ".join(_signed(value, measure) for value in by_seed)
        verdict = f"; its sign changes from seed to seed ({shown})"
    return claim | {
        "holds": holds,
        "difference": difference.value,
        "interval": [difference.low, difference.high],
        "evidence": f"{left} {_number(values[0], measure)}, {right} {_number(values[1], measure)}; "
        f"difference {_difference(difference, measure)} over {_count(len(seeds), 'seed')} x "
        f"{_count(len(orders), 'order')}{verdict}.",
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


def _paper_evidence(benchmark: str, left: str, right: str, measure: Measure) -> str | None:
    table = TABLE_1[benchmark]
    if measure == "order_variance" or left not in table or right not in table:
        return None
    if measure == "mean":
        return f"{100 * table[left][0]:.1f} % against {100 * table[right][0]:.1f} %"
    return f"{table[left][1]:.3f} against {table[right][1]:.3f} (normalized)"


def _number(value: float, measure: Measure) -> str:
    return f"{100 * value:.1f} %" if measure == "mean" else f"{value:.2g}"


def _signed(value: float, measure: Measure) -> str:
    return f"{100 * value:+.2f}" if measure == "mean" else f"{value:+.2g}"


def _difference(difference: metrics.Difference, measure: Measure) -> str:
    value, low, high = (_signed(number, measure) for number in difference)
    return f"{value}{' points' if measure == 'mean' else ''} [{low}, {high}]"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
