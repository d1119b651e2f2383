"""Format an audit as text and Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..escaping import markdown as escape
from ..escaping import printable
from ..writing import MISSING, markdown_table, percent, small
from .comparison import COMPARISONS
from .decomposition import LEVEL

if TYPE_CHECKING:
    from .result import LearnerAudit, OrderSensitivity, Tails


def text(result: OrderSensitivity) -> str:
    """The table and the findings, for a terminal."""
    headings, rows = _summary(result, printable)
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        right = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *right]).rstrip()

    table = [line(headings), "  ".join("-" * width for width in widths), *map(line, rows)]
    words = [sentence for each in result.learners for sentence in (*findings(result, each), "")]
    lines = [_title(result), scale(result), "", *table, "", *words[:-1]]
    return "\n".join(map(printable, lines))


def markdown(result: OrderSensitivity) -> str:
    """The whole report."""
    names = [escape(each.name) for each in result.learners]
    sections = [f"# {escape(_title(result))}", markdown_table(*_summary(result, escape))]
    sections += [scale(result), _LEGEND]
    sections += filter(None, [escape(comparison_note(result))])
    for name, each in zip(names, result.learners, strict=True):
        said = "\n".join(f"- {escape(sentence)}" for sentence in findings(result, each))
        sections += [f"## {name}", said]
    kinds = ("variance", "order_effect", "seed_effect", "interaction")
    parts = [[small(getattr(each.parts, kind)) for kind in kinds] for each in result.learners]
    headings = ["learner", "variance", "= order", "+ seed", "+ interaction"]
    rows = [[name, *row] for name, row in zip(names, parts, strict=True)]
    sections += ["## Parts of the variance", markdown_table(headings, rows)]
    rows = []
    for task, name in enumerate(map(escape, result.tasks)):
        means = [each.scores[:, :, task].mean(axis=0) for each in result.learners]
        cells = [map(percent, (mean.mean(), mean.min(), mean.max())) for mean in means]
        rows.append([name, *("{} ({}-{})".format(*cell) for cell in cells)])
    sections += [
        "## Tasks\n\nThe mean score in percent; the worst and the best order in brackets.",
        markdown_table(["task", *names], rows),
    ]
    averages = zip(*(map(percent, each.order_averages) for each in result.learners), strict=True)
    rows = [[str(o), escape(result.order_name(o)), *row] for o, row in enumerate(averages)]
    sections += ["## Orders", markdown_table(["order", "tasks in turn", *names], rows)]
    return "\n\n".join(map(str.strip, sections)) + "\n"


_LEGEND = """\
Scores are of the test data after the last task, averaged over tasks and seeds; variances are of
fractions. `order var.`: variance over orders, mean over seeds; `seed var.`: variance over
seeds, mean over orders (population variances, per task, then averaged). `p`: permutation test of
"the order has no effect", order labels shuffled within each seed. `disagree`: share of test samples
on which two orders, on average, predict different labels."""


HEADLINES = {
    "sensitive": "The order matters to {}",
    "below reseeding": "The order matters to {}, but no more than the seed does",
    "not shown": "No effect of the order on {} was shown",
    "none": "The order does not matter to {} at all",
    "undecided": "These are too few runs to tell whether the order matters to {}",
}


def headline(result: OrderSensitivity) -> str:
    """The verdict in one sentence, with the worst and the best order."""
    learner, tails = result.learner, result.tails
    ends, found = [learner.order_averages.min(), learner.order_averages.max()], "tried"
    for end, tail in enumerate((tails.worst, tails.best) if tails else ()):
        if tail.order not in result.orders:  # only one seed was run besides that of the search
            ends[end], found = tail.again, "found"
    low, high = map(percent, ends)
    scores = f"{low} % in the worst order {found}, {high} % in the best"
    claim = HEADLINES[learner.verdict].format(learner.name)
    chance = f"a constant answer has {percent(result.chance)} %"
    return f"{claim}: {low + ' %' if low == high else scores}; {chance}."


def scale(result: OrderSensitivity) -> str:
    """A sentence on the unit of the scores and on chance."""
    what = "accuracies" if result.score == "accuracy" else f"{result.score}, at least -100,"
    return f"Scores are {what} in percent; the best constant answer has {percent(result.chance)}."


def comparison_note(result: OrderSensitivity) -> str:
    """A note on the rows of this library's learners; empty without them."""
    beside = " and ".join(each.name for each in result.comparisons if each.name in COMPARISONS)
    return beside and (
        f"The package's own learners ({beside}) were set up from the shape of the data alone: they "
        "show what is possible, not which method is better at equal settings."
    )


def _title(result: OrderSensitivity) -> str:
    shape = f"{len(result.tasks)} tasks, {len(result.orders)} orders x {result.seeds} seeds"
    return f"Order sensitivity of {result.learner.name}: {shape}"


def _summary(
    result: OrderSensitivity, name: Callable[[str], str]
) -> tuple[list[str], list[list[str]]]:
    headings = "learner,average,worst order,order var.,seed var.,p,disagree,order matters"
    rows = [
        [
            name(each.name),
            percent(each.parts.average),
            percent(each.order_averages[each.worst_order]),
            small(each.order_variance),
            small(each.seed_variance),
            probability(each.p_value),
            f"{percent(each.mean_disagreement)} %",
            VERDICTS[each.verdict],
        ]
        for each in result.learners
    ]
    return headings.split(","), rows


VERDICTS = {
    "sensitive": "yes",
    "below reseeding": "less than seed",
    "not shown": "not shown",
    "none": "not at all",
    "undecided": "undecided",
}


def findings(result: OrderSensitivity, learner: LearnerAudit) -> list[str]:
    """The findings about one learner, one sentence each."""
    name, said = learner.name, [_claim(learner), *_about_chance(result, learner)]
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
    if learner.same_in_every_order:
        return said
    worst, best, averages = learner.worst_order, learner.best_order, learner.order_averages
    if averages[worst] < averages[best]:
        said.append(
            f"Worst order: {result.order_name(worst)} ({percent(averages[worst])} %); best: "
            f"{result.order_name(best)} ({percent(averages[best])} %)."
        )
    if learner is result.learner and result.tails and result.tails.runs:  # or all were tried
        said += _about_tails(result, result.tails)
    if learner.verdict in ("sensitive", "below reseeding"):
        task = learner.suffering_task
        means = learner.scores[:, :, task].mean(axis=0)
        said.append(
            f"Task {result.tasks[task]} depends most on it: {percent(means.min())} % after "
            f"{result.order_name(int(means.argmin()))}, {percent(means.max())} % in its best "
            "order."
        )
    apart = "Two orders disagree on {} % of the test samples, two seeds on {} %."
    if result.score != "accuracy":
        apart = "Predictions in two orders are {} % of the targets' standard deviation apart, "
        apart += "those of two seeds {} %."
    between = map(percent, (learner.mean_disagreement, learner.seed_disagreement))
    return [*said, apart.format(*between)]


def _about_chance(result: OrderSensitivity, learner: LearnerAudit) -> list[str]:
    """A sentence if a learner is no better than a constant answer, at once or in the end."""
    margin = 1.0 / math.sqrt(result.samples)  # at least two standard errors of an accuracy
    at_once = learner.just_learned(result.orders)
    if at_once <= result.chance_in_task + margin:
        return [
            f"{learner.name} is not clearly above chance: even on the task just learned it scores "
            f"{percent(at_once)} %, where the best constant answer has "
            f"{percent(result.chance_in_task)} %. The effect of the order on it is not meaningful."
        ]
    if learner.parts.average <= result.chance + margin:
        return [
            f"After the last task {learner.name} is not clearly above chance, "
            f"{percent(learner.parts.average)} % on average; on a task just learned it had "
            f"{percent(at_once)} %."
        ]
    return []


def _about_tails(result: OrderSensitivity, tails: Tails) -> list[str]:
    ends = ("worst", tails.worst, tails.random_worst), ("best", tails.best, tails.random_best)
    return [
        f"The {kind} order that {tails.runs} more runs found: {result.order_name(tail.order)} "
        f"({percent(tail.average)} % with seed 0, {percent(tail.again)} % with seed 1). The "
        f"{kind} of {len(result.orders)} random orders had {percent(drawn)} % with seed 0."
        for kind, tail, drawn in ends
    ]


def _claim(learner: LearnerAudit) -> str:
    name, parts, verdict = learner.name, learner.parts, learner.verdict
    order, seed = (math.sqrt(v) for v in (parts.fair_order_variance, parts.fair_seed_variance))
    spread = f"standard deviation {100 * order:.2f} points against {100 * seed:.2f}"
    p = f"p = {probability(parts.p_value)}"
    if verdict == "none":
        return f"{name} does not depend on the order: every order gave the same bits."
    if verdict == "undecided":
        return (
            f"Nothing can be claimed about {name}: with so few orders and seeds the test cannot "
            f"reach {LEVEL:g}, its smallest p-value is {probability(parts.smallest_p_value)}; use "
            "more of either."
        )
    if verdict == "sensitive" and learner.ignores_seed:
        return f"{name} is sensitive to the order: standard deviation {100 * order:.2f} points."
    if verdict == "sensitive":
        ratio = (order / seed) ** 2 if seed > 0 else 0.0
        many = f"{ratio:,.{1 if ratio < 100 else 0}f} times" if ratio else "above"
        return (
            f"{name} is sensitive to the order: the variance of its scores between orders is "
            f"{many} that between seeds ({spread}, {p})."
        )
    if verdict == "below reseeding":
        return (
            f"The order matters to {name} ({p}), but no more than the seed does ({spread}): not "
            "called sensitive."
        )
    if learner.ignores_seed:
        return f"The order changes some predictions of {name}, but not one of its scores."
    few = " With so few runs the test is weak: use more orders or seeds."
    return (
        f"No effect of the order on {name} was shown: random relabelling of the orders gives one "
        f"as large too often ({spread}, {p})."
        f"{few if parts.smallest_p_value > LEVEL / 10 else ''}"
    )


def probability(value: float | None) -> str:
    """A p-value with enough digits to compare it with 0.05."""
    if value is None:
        return MISSING
    return f"{value:.4f}" if value < 0.01 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
