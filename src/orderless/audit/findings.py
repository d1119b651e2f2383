"""What an audit found about a learner, in sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..text import percent
from .decomposition import LEVEL

if TYPE_CHECKING:
    from .result import LearnerAudit, OrderSensitivity, Tails


def findings(result: OrderSensitivity, learner: LearnerAudit) -> list[str]:
    """The findings about one learner, one sentence each; the verdict comes first."""
    name = learner.name
    said = [claim(learner), *_about_chance(result, learner)]
    if learner.changed_by_predict:
        said.append(
            f"{name} gives other answers when it predicts at other times: `predict` changes it, or "
            "its training is not deterministic. Its figures depend on these calls."
        )
    if learner.ignores_seed and not learner.same_in_every_order:
        said.append(
            f"{name} gave the same predictions with every seed: it ignores `seed`, or the seed has "
            "no effect on this data. Seeds are then not replicates, and the order variance is "
            "compared with 0."
        )
    if learner.broken_runs:
        total = learner.scores.shape[0] * learner.scores.shape[1]
        said.append(
            f"In {learner.broken_runs} of {total} runs {name} predicted values that are not "
            "finite; they count as wrong."
        )
    if not learner.same_in_every_order:
        said += _about_orders(result, learner)
    if learner is result.learner and result.slope:
        said.append(str(result.slope))
    return said


def _about_orders(result: OrderSensitivity, learner: LearnerAudit) -> list[str]:
    """The worst and the best order, the task that depends most on it, and how answers differ."""
    said = []
    worst = learner.worst_order
    best = learner.best_order
    averages = learner.order_averages
    if averages[worst] < averages[best]:
        said.append(
            f"Worst order: {result.order_names[worst]} ({percent(averages[worst])}%); best: "
            f"{result.order_names[best]} ({percent(averages[best])}%)."
        )
    if learner is result.learner and result.tails and result.tails.runs:  # or all were tried
        said += _about_tails(len(result.orders), result.tails)
    if learner.verdict in ("sensitive", "below reseeding") and len(result.tasks) > 1:
        task = learner.suffering_task
        means = learner.scores[:, :, task].mean(axis=0)
        said.append(
            f"Task {result.tasks[task]} depends most on it: {percent(means.min())}% after "
            f"{result.order_names[int(means.argmin())]}, {percent(means.max())}% in its best order."
        )
    between_orders = percent(learner.mean_disagreement)
    between_seeds = percent(learner.seed_disagreement)
    if result.score == "accuracy":
        said.append(
            f"Two orders disagree on {between_orders}% of the test samples, two seeds on "
            f"{between_seeds}%."
        )
    else:
        said.append(
            f"Predictions in two orders are {between_orders}% of the targets' standard deviation "
            f"apart, those of two seeds {between_seeds}%."
        )
    return said


def _about_tails(random_orders: int, tails: Tails) -> list[str]:
    ends = ("worst", tails.worst, tails.random_worst), ("best", tails.best, tails.random_best)
    return [
        f"The {kind} order that {tails.runs} more runs found: {tail.name} "
        f"({percent(tail.average)}% with seed 0, {percent(tail.again)}% with seed 1). The "
        f"{kind} of {random_orders} random orders reaches {percent(drawn)}% with seed 0."
        for kind, tail, drawn in ends
    ]


def _about_chance(result: OrderSensitivity, learner: LearnerAudit) -> list[str]:
    """A sentence if a learner is no better than a constant answer, at once or in the end."""
    margin = 1.0 / math.sqrt(result.samples)  # at least two standard errors of an accuracy
    average = learner.parts.average
    if average > result.chance + margin:
        return []
    said = (
        f"{learner.name} is not clearly above chance: it reaches {percent(average)}% on average, "
        f"the best constant answer {percent(result.chance)}%"
    )
    at_once = learner.just_learned(result.orders)
    if at_once is not None and at_once > result.chance_in_task + margin:
        return [f"{said}. On a task just learned it reaches {percent(at_once)}%."]
    return [f"{said}. The effect of the order on it is not meaningful."]


def claim(learner: LearnerAudit) -> str:
    """The verdict with its numbers."""
    name = learner.name
    parts = learner.parts
    order = math.sqrt(parts.fair_order_variance)
    seed = math.sqrt(parts.fair_seed_variance)
    spread = (
        f"standard deviation {100 * order:.2f} points between orders, {100 * seed:.2f} between "
        f"seeds; p = {probability(parts.p_value)}"
    )
    if learner.verdict == "none":
        return f"{name} does not depend on the order: every order gave the same bits."
    if learner.verdict == "undecided":
        return (
            f"Nothing can be claimed about {name}: with so few orders and seeds the smallest "
            f"p-value is {probability(parts.smallest_p_value)}, above {LEVEL:g}: use more of them."
        )
    if learner.ignores_seed:
        if learner.verdict == "not shown":
            return f"The order changes some predictions of {name}, but not one of its scores."
        return f"{name} is sensitive to the order: standard deviation {100 * order:.2f} points."
    if learner.verdict == "sensitive":
        return f"{name} is sensitive to the order ({spread})."
    if learner.verdict == "below reseeding":
        return f"The order matters to {name}, but no more than the seed does ({spread})."
    weak = parts.smallest_p_value > LEVEL / 10
    few = " With so few runs the test is weak: use more orders or seeds." if weak else ""
    return f"No effect of the order on {name} was found ({spread}).{few}"


def probability(value: float) -> str:
    """A p-value with enough digits to compare it with 0.05."""
    if value < 0.01:
        return f"{value:.4f}"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
