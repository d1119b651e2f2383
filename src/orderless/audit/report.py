"""The report of an audit as text and as one HTML page: the same sections, twice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from string import Template
from typing import TYPE_CHECKING

from ..text import MISSING, percent, printable, small
from .findings import findings, probability

if TYPE_CHECKING:
    from .result import LearnerAudit, OrderSensitivity

VERDICTS = {
    "sensitive": "yes",
    "below reseeding": "less than seed",
    "not shown": "not shown",
    "none": "not at all",
    "undecided": "undecided",
}
LEGEND = (
    "Scores are of the test data after the last task, averaged over tasks and seeds. Order sd: "
    "standard deviation between orders of the score on a task, in points; seed sd: that between "
    "seeds (roots of population variances, averaged over tasks and over seeds or orders). p: "
    'permutation test of "the order has no effect", order labels shuffled within each seed.'
)


@dataclass
class Section:
    """A heading, sentences, and a table whose first row has the headings of its columns."""

    heading: str
    sentences: Sequence[str] = ()
    table: Sequence[Sequence[str]] = field(default_factory=list)


def sections(result: OrderSensitivity) -> list[Section]:
    """The report: first the answer, then the findings, then what they were computed from."""
    shape = f"{len(result.tasks)} tasks, {len(result.orders)} orders x {result.seeds} seeds"
    if len(result.tasks) == 1:
        shape = f"{len(result.orders)} orders of rows x {result.seeds} seeds"
    learners = result.learners
    names = [learner.name for learner in learners]
    title = f"Order sensitivity of {result.learner.name}: {shape}"
    return [
        Section(title, [_scale(result), f"Orders run: {result.digest}."], _summary(learners)),
        *(Section(each.name, findings(result, each)) for each in learners),
        Section("What the columns mean", [LEGEND]),
        Section(
            "Tasks",
            ["The mean score in percent; the worst and the best order in brackets."],
            [["task", *names], *_task_rows(result)],
        ),
        Section("Orders", [], [["order", "what came in turn", *names], *_order_rows(result)]),
    ]


def _scale(result: OrderSensitivity) -> str:
    """The unit of the scores, and the level of chance."""
    what = "accuracies" if result.score == "accuracy" else f"{result.score}, at least -100,"
    return f"Scores are {what} in percent; the best constant answer has {percent(result.chance)}."


def _summary(learners: Sequence[LearnerAudit]) -> list[list[str]]:
    headings = "learner,average,worst order,order sd,seed sd,p,order matters"
    rows = [
        [
            each.name,
            percent(each.parts.average),
            percent(each.order_averages[each.worst_order]),
            _points(each.order_variance),
            _points(each.seed_variance),
            MISSING if each.p_value is None else probability(each.p_value),
            VERDICTS[each.verdict],
        ]
        for each in learners
    ]
    return [headings.split(","), *rows]


def _points(variance: float) -> str:
    """The standard deviation in points, for a variance of fractions."""
    return small(100 * math.sqrt(variance))


def _task_rows(result: OrderSensitivity) -> list[list[str]]:
    rows = []
    for task, name in enumerate(result.tasks):
        row = [name]
        for learner in result.learners:
            means = learner.scores[:, :, task].mean(axis=0)
            low, high = percent(means.min()), percent(means.max())
            row.append(f"{percent(means.mean())} ({low}-{high})")
        rows.append(row)
    return rows


def _order_rows(result: OrderSensitivity) -> list[list[str]]:
    columns = [map(percent, learner.order_averages) for learner in result.learners]
    numbers = map(str, range(len(result.orders)))
    return [list(row) for row in zip(numbers, result.order_names, *columns, strict=True)]


def text(result: OrderSensitivity) -> str:
    """The table and the findings, for a terminal."""
    first, *rest = sections(result)
    rows = [[printable(cell) for cell in row] for row in first.table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    lines = [first.heading, *first.sentences, ""]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    for section in rest[: len(result.learners)]:
        lines += ["", *section.sentences]
    return "\n".join(map(printable, lines))


def html(result: OrderSensitivity, command: str) -> str:
    """The whole report as a page of its own."""
    blocks = []
    for number, section in enumerate(sections(result)):
        level = "h2" if number else "h1"
        blocks.append(f"<{level}>{_safe(section.heading)}</{level}>")
        if section.table:
            blocks.append(_html_table(section.table))
        if not number:
            blocks.append(_strips(result))
        blocks += [f"<p>{_safe(sentence)}</p>" for sentence in section.sentences]
    if command:
        blocks.append(f"<p><code>{_safe(command)}</code></p>")
    title = _safe(f"Order sensitivity of {result.learner.name}")
    return PAGE.substitute(title=title, body="\n".join(blocks))


def _safe(text: str) -> str:
    return escape(printable(text))


def _html_table(table: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{_safe(cell)}</{tag}>" for cell in cells) + "</tr>"

    lines = [row(table[0], "th"), *(row(cells, "td") for cells in table[1:])]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _strips(result: OrderSensitivity) -> str:
    """For each learner a line from 0 to 100%, with a tick for every order and one for chance."""

    def tick(kind: str, value: float, title: str) -> str:
        place = f'class="{kind}" style="left:{100 * max(value, 0.0):.2f}%"'
        return f'<i {place} title="{_safe(title)}: {percent(value)}%"></i>'

    lines = []
    for learner in result.learners:
        orders = zip(learner.order_averages.tolist(), result.order_names, strict=True)
        ticks = [tick("order", average, name) for average, name in orders]
        ticks.append(tick("chance", result.chance, "the best constant answer"))
        lines.append(f"<dt>{_safe(learner.name)}</dt><dd>{''.join(ticks)}</dd>")
    return (
        f"<dl>{''.join(lines)}</dl><p>One tick for every order, at its average score from 0 to "
        "100%; the dashed line is the best constant answer.</p>"
    )


PAGE = Template("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --line: #8888; --tick: light-dark(#0b5fa5, #7cc4ff); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
h1, h2, p, dt { overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
dd { position: relative; height: 1.4rem; margin: 0 0 .6rem; border-bottom: 1px solid var(--line); }
i { position: absolute; top: 0; bottom: 0; }
.order { width: 3px; margin-left: -1px; background: var(--tick); opacity: .75; }
.chance { border-left: 2px dashed var(--line); }
code { overflow-wrap: anywhere; }
</style>
<body>
$body
</body>
</html>
""")
