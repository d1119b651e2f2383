"""The numbers of a row: one function here is one number in the CSV, the JSON and the tables.

Its docstring explains the column. `shown` numbers stand in the tables for readers, where a column
without any value is left out; all numbers stand in the CSV and in the JSON.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from orderless import metrics

from ..text import MISSING
from .frame import Array, Row, matrix_of

Compute = Callable[[Row], float]
Unit = Literal["score", "points", "share", "number"]
Better = Literal["high", "low"]


class Number(NamedTuple):
    """How a number is computed from a row, and how a table shows it."""

    heading: str
    compute: Compute
    explanation: str
    unit: Unit
    better: Better | None
    shown: bool


NUMBERS: dict[str, Number] = {}


def number(
    heading: str = "", *, unit: Unit = "number", better: Better | None = None, shown: bool = False
) -> Callable[[Compute], Compute]:
    """Register a function of a row as a number, which has the function's name.

    Args:
        heading: of its column; the function's name by default.
        unit: a "score" (a fraction, written in percent, or a return), a difference of scores in
            "points", a "share" (written in percent), or a plain "number".
        better: whether the page marks the highest or the lowest value.
        shown: whether the tables for readers have it.
    """

    def register(compute: Compute) -> Compute:
        name = compute.__name__
        explanation = " ".join((compute.__doc__ or "").split())
        title = heading or name.replace("_", " ")
        NUMBERS[name] = Number(title, compute, explanation, unit, better, shown)
        return compute

    return register


def numbers_of(rows: dict[str, Row]) -> pd.DataFrame:
    """All numbers, one line per row; NaN where one is unknown."""
    lines = {
        name: [number.compute(row) for number in NUMBERS.values()] for name, row in rows.items()
    }
    frame = pd.DataFrame.from_dict(lines, orient="index", columns=list(NUMBERS), dtype=np.float64)
    return frame.replace([math.inf, -math.inf], math.nan)


def written(unit: Unit, value: float, returns: bool = False) -> str:
    """A value for readers; only 0 itself is written as 0 points."""
    if math.isnan(value):
        return MISSING
    if unit == "number":
        return f"{value:.4g}"
    if returns and unit != "share":
        return f"{value:.3f}"
    if unit == "points" and abs(value) < 0.0005:
        return "<0.1" if value else "0"
    return f"{100 * value:.1f}"


@number(unit="score", better="high", shown=True)
def average(row: Row) -> float:
    """Mean over tasks, orders and seeds after the last task. The score of a filter is the weighted
    mean of its particles' scores."""
    return metrics.average(row.scores)


@number("± 95%", unit="points", shown=True)
def margin(row: Row) -> float:
    """Half of the 95% interval of the average, for other orders, and for other seeds where
    there are several."""
    low, high = metrics.interval(row.scores)
    return (high - low) / 2 if len(row.block) > 1 else math.nan


@number("task sd over orders", unit="points", better="low", shown=True)
def task_sd(row: Row) -> float:
    """The order sensitivity: standard deviation of a task's score over orders. It is the root of
    the order variance, which is averaged over tasks and seeds; the average over tasks varies
    less."""
    return math.sqrt(order_variance(row))


@number(unit="score", better="high", shown=True)
def worst_order(row: Row) -> float:
    """The lowest average of an order."""
    return metrics.worst_order(row.scores) if len(row.orders) > 1 else math.nan


@number("of expert", unit="share", better="high", shown=True)
def of_expert(row: Row) -> float:
    """Share in percent of the way from untrained networks to the expert."""
    expert = row.cells[0].expert
    if expert is None or any(cell.expert != expert for cell in row.cells):
        return math.nan
    untrained = row.mean("untrained")
    gain = np.array(expert.level_returns, dtype=np.float64).mean() - untrained
    return float((average(row) - untrained) / gain) if gain > 1e-9 else math.nan


@number(unit="score", better="high", shown=True)
def just_learned(row: Row) -> float:
    """Mean score on a task right after it was learned. A method that knows little then has not
    forgotten: it has not learned."""
    return row.mean("just_learned")


@number(unit="points", better="low", shown=True)
def forgetting(row: Row) -> float:
    """The best score on a task minus that at the end, over all tasks but the last."""
    return _over_runs(row, metrics.forgetting)


@number()
def bwt(row: Row) -> float:
    """Backward transfer: the score on a task at the end minus that right after it was learned."""
    return _over_runs(row, metrics.backward_transfer)


@number()
def fwt(row: Row) -> float:
    """Forward transfer: what earlier tasks add to the score on a task before it is learned."""
    return _over_runs(row, metrics.forward_transfer)


@number()
def average_logits(row: Row) -> float:
    """Accuracy of the weighted mean of the particles' outputs."""
    return row.mean("logits")


@number()
def average_probs(row: Row) -> float:
    """Accuracy of the weighted mean of the particles' probabilities."""
    return row.mean("probs")


@number()
def average_released(row: Row) -> float:
    """As the paper's released code scores each row: weighted particles by logits, others by the
    mean accuracy of the particles."""
    return average_logits(row) if row.method.weighted and not row.returns else average(row)


@number()
def order_variance(row: Row) -> float:
    """Variance over orders with a fixed seed of each task's score, averaged over tasks."""
    return metrics.order_variance(row.scores) if len(row.orders) > 1 else math.nan


@number()
def seed_variance(row: Row) -> float:
    """Variance over seeds in a fixed order of each task's score, averaged over tasks."""
    return metrics.seed_variance(row.scores) if len(row.seeds) > 1 else math.nan


@number()
def variance(row: Row) -> float:
    """Variance over orders and seeds together of each task's score, averaged over tasks."""
    return metrics.variance(row.scores) if len(row.block) > 1 else math.nan


@number()
def normalized_variance(row: Row) -> float:
    """The total variance of each task divided by its squared mean, which returns do not have."""
    known = len(row.block) > 1 and not row.returns
    return metrics.normalized_variance(row.scores) if known else math.nan


@number()
def normalized_order_variance(row: Row) -> float:
    """The order variance of each task divided by its squared mean, which returns do not have."""
    known = len(row.orders) > 1 and not row.returns
    return metrics.normalized_order_variance(row.scores) if known else math.nan


@number()
def nll(row: Row) -> float:
    """Mean negative logarithm of the probability of the right label."""
    return row.mean("nll")


@number()
def ece(row: Row) -> float:
    """Expected calibration error over 15 bins."""
    return row.mean("ece")


@number()
def disagreement(row: Row) -> float:
    """Share of test samples on which two orders of one seed predict different labels."""
    values = []
    for _, group in row.frame.groupby(["seed", "task"]):
        labels = list(group["labels"])
        if any(each is None or len(each) != len(labels[0]) for each in labels):
            return math.nan
        values.append(metrics.disagreement(np.stack(labels)))
    return float(np.mean(values))


@number()
def ess_final(row: Row) -> float:
    """Effective sample size of the weights at the end."""
    return row.mean("ess")


@number()
def log_evidence(row: Row) -> float:
    """Logarithm of the evidence."""
    return row.mean("log_evidence")


@number()
def temperature(row: Row) -> float:
    """Temperature of the weights."""
    return row.mean("temperature")


@number()
def alive(row: Row) -> float:
    """Networks whose loss stayed finite."""
    return row.mean("alive")


@number()
def particles(row: Row) -> float:
    """Networks of the method."""
    return row.mean("particles")


def _over_runs(row: Row, metric: Callable[[Array, list[int]], float]) -> float:
    """The mean over runs of a metric of R; NaN if a score is missing."""
    runs = [(matrix_of(cell), cell.order) for cell in row.block]
    if not all(np.isfinite(matrix).all() for matrix, _ in runs):
        return math.nan
    return float(np.mean([metric(matrix, order) for matrix, order in runs]))
