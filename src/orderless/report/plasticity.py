"""Plasticity by place in the order, and the paper's claim that weighted particles keep it.

The claim is judged on the second half of each order by Student's interval over the orders' paired
differences, against PPO and against unweighted particles: what those keep as well is no effect of
the weights.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .. import metrics
from ..experiments.record import CellRecord
from ..writing import count
from .blocks import by_order_place
from .charts import Band, Series
from .claims import FEWEST_ORDERS, decided, shared_block
from .paper import method_label
from .summary import Claim, Summary

ROWS = ("ppo", "ppo+averaging", "ppo+wpf")
# measure -> (in words, "high" or "low" if one of them is better)
MEASURES = {
    "return": ("area under a level's curve", "high"),
    "dormant": ("dormant units", "low"),
    "effective_rank": ("effective rank", "high"),
    "mean_abs_weight": ("mean size of weights", None),
}


def judge_plasticity(summary: Summary, cells: Sequence[CellRecord]) -> list[Claim]:
    """Verdicts on whether weighted particles keep more plasticity than PPO and than averaging."""
    if summary.benchmark != "procgen-lifelong":
        return []
    *others, _ = ROWS
    measures = [name for name, (_, better) in MEASURES.items() if better]
    return [_judge(summary, cells, other, name) for other in others for name in measures]


def _judge(summary: Summary, cells: Sequence[CellRecord], right: str, measure: str) -> Claim:
    left = ROWS[-1]
    words, better = MEASURES[measure]
    claim = Claim(
        claim=f"{method_label(left)} keeps more plasticity than {method_label(right)}",
        measure=f"{words}, second half of the order",
        paper="figure 3" if right == ROWS[0] else None,
    )
    shared = shared_block(summary, cells, left, right, FEWEST_ORDERS)
    if isinstance(shared, str):
        return replace(claim, evidence=shared)
    *both, seeds, orders = shared
    runs = [
        [by_order_place(of[s, o]).get(measure, []) for s in seeds for o in orders] for of in both
    ]
    values = np.array(runs, dtype=np.float64)  # [method, run, place]
    if values.ndim < 3 or values.shape[2] < 2 or not np.isfinite(values).all():
        return replace(claim, evidence=f"Not recorded: {measure}.")
    ours, theirs = values[:, :, -(values.shape[2] // 2) :].mean(axis=2)
    means = {left: float(ours.mean()), right: float(theirs.mean())}
    # runs that share an order are not independent of each other: one value per order
    by_order = (ours - theirs).reshape(len(seeds), len(orders)).mean(axis=0)
    difference = metrics.mean_interval(by_order)
    return decided(claim, means, difference, count(len(ours), "run"), better=better or "")


def plasticity_series(summary: Summary) -> dict[str, Series]:
    """By measure: means by place in the order with 95 % intervals; empty for a single level."""
    found = {}
    for name, (words, _) in MEASURES.items():
        lines = {}
        for row in ROWS:
            entry = summary.methods.get(row)
            if entry is not None and len(entry.plasticity_half.get(name, [])) > 1:
                mean, half = (np.array(e[name]) for e in (entry.plasticity, entry.plasticity_half))
                lines[row] = Band(mean, mean - half, mean + half)
        if lines and "return" in summary.methods[next(iter(lines))].plasticity:
            places = np.arange(1.0, 1 + max(len(band.mean) for band in lines.values()))
            found[name] = Series(words, places, lines, unit="place")
    return found
