"""The page of an audit: anybody's learner in the places of methods, and what was found."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

from ... import metrics
from ...audit import LearnerAudit, OrderSensitivity
from ...audit.words import VERDICTS, comparison_note, findings, probability
from ...storage import versions
from ..charts import Dot, Point, Range, Style, method_styles
from ..summary import ReportError
from ..tables import MISSING
from .charts import range_chart, scatter_charts
from .data import Finding, Page, Result, looks, rounded
from .render import write_page
from .table import Column, Head, Value, build_table, score_column, variance_column

# How a verdict is coloured, and which way the column sorts.
KINDS = {
    "none": "holds",
    "not shown": "open",
    "undecided": "open",
    "below reseeding": "open",
    "sensitive": "fails",
}


def write_audit_page(result: OrderSensitivity, folder: Path | str, command: str = "") -> Path:
    """Write `folder/report.html`; returns its path."""
    return write_page(audit_page(result, Path(folder), command), Path(folder))


def audit_page(audit: OrderSensitivity, folder: Path, command: str = "") -> Page:
    """What the page shows; without matplotlib it has no charts, and says so."""
    learners = {each.name: each for each in audit.learners}
    orders, runs = audit.orders, audit.seeds * len(audit.orders)
    broken = {name: (each.broken_runs, runs) for name, each in learners.items()}
    result = Result(
        benchmark=f"Order sensitivity of {audit.learner.name}",
        subtitle=f"{len(audit.tasks)} tasks, {len(orders)} orders x {audit.seeds} seeds",
        score="accuracy",
        tasks=list(audit.tasks),
        orders={str(index): list(order) for index, order in enumerate(orders)},
        methods=looks(list(learners), str),
        table=build_table(COLUMNS, learners, broken),
        matrices={
            name: {str(o): rounded(m) for o, m in enumerate(each.matrices.mean(axis=0))}
            for name, each in learners.items()
        },
        findings=[
            Finding(
                name,
                f"{name}: {VERDICTS[each.verdict]}",
                KINDS[each.verdict],
                findings(audit, each),
            )
            for name, each in learners.items()
        ],
        notes=list(filter(None, [comparison_note(audit)])),
        command=command or None,
        device=platform.machine(),
        versions=versions(),
        duration=sum(each.seconds for each in audit.learners),
        cells=runs * len(learners),
    )
    styles, problems = method_styles(list(learners)), []
    charts: dict[str, str] = {}
    try:
        result, charts = _with_charts(result, audit, styles)
    except ReportError as error:
        problems.append(str(error))
    return Page(str(folder), [result], [charts], problems)


def _with_charts(
    result: Result, audit: OrderSensitivity, styles: dict[str, Style]
) -> tuple[Result, dict[str, str]]:
    labels = {name: name for name in styles}
    learners, tasks = audit.learners, range(len(audit.tasks))
    charts = range_chart(
        [task_range(each, task) for task in tasks for each in learners],
        styles,
        audit.tasks,
        [" → ".join(audit.tasks[task] for task in order) for order in audit.orders],
    )
    normalized = all(each.scores.mean(axis=(0, 1)).all() for each in learners)
    points = [audit_point(each, normalized) for each in learners]
    scattered = {"returns": False, "normalized": normalized}
    charts |= scatter_charts(points, styles, labels, **scattered)
    return replace(result, dots=normalized), charts


def audit_point(learner: LearnerAudit, normalized: bool) -> Point:
    """A learner's average and variances, and each order's share of them."""
    scores = learner.scores
    if not normalized:
        variances = (metrics.variance(scores), metrics.order_variance(scores))
        return Point(learner.name, metrics.average(scores), *variances, dots=[])
    variances = (metrics.normalized_variance(scores), metrics.normalized_order_variance(scores))
    rows = zip(
        metrics.order_averages(scores).tolist(),
        metrics.order_contributions(scores).tolist(),
        metrics.order_contributions(scores, within_seed=True).tolist(),
        strict=True,
    )
    dots = [Dot(index, *row) for index, row in enumerate(rows)]
    return Point(learner.name, metrics.average(scores), *variances, dots=dots)


def task_range(learner: LearnerAudit, task: int) -> Range:
    """How far the order moves a learner's score on one task; means over seeds."""
    means = learner.scores[:, :, task].mean(axis=0)
    low, high = int(means.argmin()), int(means.argmax())
    ends = (float(means[low]), float(means[high]), low, high)
    return Range(task, learner.name, float(means.mean()), *ends)


def _score(value: Value[LearnerAudit], *head: str) -> Column[LearnerAudit]:
    return score_column(Head(*head), value, returns=False)


def _variance(value: Value[LearnerAudit], *head: str) -> Column[LearnerAudit]:
    return variance_column(Head(*head, *([] if len(head) > 2 else ["low"])), value)


MATTERS = (
    "yes: more than another seed does, and by no chance. less than seed: by no chance, but another "
    "seed matters as much. not shown: it may be chance. not at all: every order gave the same "
    "bits. undecided: too few runs to tell."
)
AVERAGE = "Mean accuracy over tasks, orders and seeds after the last task."
WORST_ORDER = "The average under the order that suited the learner least."
ORDER = "Variance over orders while the seed is held fixed: order effect + interaction."
SEED = "Variance over seeds while the order is held fixed: seed effect + interaction."
TEST = "Permutation test of “the order has no effect”: order labels shuffled within each seed."
DISAGREE = "Share of test samples on which two orders, on average, predict different labels."

COLUMNS: list[Column[LearnerAudit]] = [
    Column(
        Head("order matters", MATTERS),
        lambda each: list(KINDS).index(each.verdict),
        lambda each: VERDICTS[each.verdict],
    ),
    _score(lambda each: each.parts.average, "average", AVERAGE, "high", "highest average"),
    _score(lambda each: float(each.order_averages.min()), "worst order", WORST_ORDER, "high"),
    _variance(lambda e: e.order_variance, "order variance", ORDER, "low", "lowest order variance"),
    _variance(lambda each: each.seed_variance, "seed variance", SEED),
    Column(
        Head("p", TEST),
        lambda each: each.p_value,
        lambda each: MISSING if each.p_value is None else probability(each.p_value),
    ),
    _variance(lambda each: each.parts.variance, "total variance", "The sum of the next three."),
    _variance(
        lambda e: e.parts.order_effect, "order effect", "What an order does with every seed alike."
    ),
    _variance(
        lambda e: e.parts.seed_effect, "seed effect", "What a seed does in every order alike."
    ),
    _variance(
        lambda e: e.parts.interaction, "interaction", "What an order does with one seed only."
    ),
    _score(lambda each: each.mean_disagreement, "disagreement", DISAGREE, "low"),
]
