"""The report holds the audit's numbers, and no name becomes markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from orderless.audit import LearnerAudit, OrderSensitivity, order_p_value
from orderless.audit.orders import draw_orders
from orderless.audit.report import VERDICTS

TASKS = ("monday", "tuesday", "</script>")
HOSTILE = ("<script>alert(1)</script>", "a | b\n# c")


def make_audit(seeds: int = 3, count: int = 5) -> OrderSensitivity:
    """An audit of two learners, one of which depends on the order and one of which does not."""
    generator = np.random.default_rng(0)
    effect = generator.random((1, count, len(TASKS), len(TASKS)))

    def learner(name: str, size: float) -> LearnerAudit:
        noise = generator.random((seeds, count, len(TASKS), len(TASKS)))
        matrices = 0.5 + size * (effect + 0.1 * noise)
        return LearnerAudit(name, matrices, np.zeros((count, count)), 0.0, False, size == 0)

    orders = tuple(draw_orders(len(TASKS), count, 0))
    names = tuple(" > ".join(TASKS[task] for task in order) for order in orders)
    both = learner("mine", 0.4), learner("exact", 0.0)
    return OrderSensitivity(both[0], both[1:], TASKS, orders, seeds, names, chance=0.335)


class Page(HTMLParser):
    """The tables of a page as lists of texts, its ticks, its tags and everything it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.ticks: list[tuple[str, float]] = []
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.said = ""
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.loaded += [values[key] for key in ("src", "href") if key in values]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "i":
            left = re.fullmatch(r"left:([0-9.]+)%", values["style"])
            self.ticks.append((values["class"], float(left[1])))
        self.in_cell = tag in ("td", "th")

    def handle_endtag(self, tag) -> None:
        self.in_cell = False

    def handle_data(self, data: str) -> None:
        self.said += data
        if self.in_cell:
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def audited() -> OrderSensitivity:
    return make_audit()


@pytest.fixture(scope="module")
def page(audited: OrderSensitivity) -> Page:
    return Page(audited.html("orderless audit a:b --tasks a:c"))


def test_the_table_holds_the_variances_and_the_verdict(audited, page) -> None:
    headings, mine, exact = page.tables[0]
    shown = dict(zip(headings, mine, strict=True))
    scores = audited.learner.scores
    deviations = [100 * scores.var(axis=axis).mean() ** 0.5 for axis in (1, 0)]
    shown_deviations = [float(shown["order sd"]), float(shown["seed sd"])]
    assert shown_deviations == pytest.approx(deviations, rel=0.05)
    assert shown["worst order"] == f"{100 * scores.mean(axis=(0, 2)).min():.1f}"
    assert float(shown["p"]) == pytest.approx(order_p_value(scores), abs=5e-5)
    assert shown["order matters"] == "yes"
    assert dict(zip(headings, exact, strict=True))["order matters"] == "not at all"


def test_every_order_has_a_row_and_a_tick_for_each_learner(audited, page) -> None:
    rows = page.tables[-1][1:]
    for learner, column in zip(audited.learners, (2, 3), strict=True):
        expected = 100 * learner.order_averages
        assert [float(row[column]) for row in rows] == pytest.approx(expected, abs=0.051)
    ticks = [place for kind, place in page.ticks if kind == "order"]
    averages = np.concatenate([learner.order_averages for learner in audited.learners])
    assert ticks == pytest.approx(100 * averages, abs=0.0051)
    assert [place for kind, place in page.ticks if kind == "chance"] == [33.5, 33.5]


def test_every_task_has_its_mean_and_the_range_over_orders(audited, page) -> None:
    rows = {row[0]: row[1] for row in page.tables[-2][1:]}
    means = 100 * audited.learner.scores.mean(axis=0)  # [O, T]
    for name, values in zip(TASKS, means.T, strict=True):
        assert rows[name] == f"{values.mean():.1f} ({values.min():.1f}-{values.max():.1f})"


def test_the_page_loads_nothing_and_has_no_script(page) -> None:
    assert page.loaded == [] and not {"script", "link", "img"} & set(page.tags)
    assert "orderless audit a:b --tasks a:c" in page.said


def test_every_verdict_has_a_word(audited) -> None:
    for verdict in ("sensitive", "below reseeding", "not shown", "none", "undecided"):
        assert VERDICTS[verdict]
    assert {learner.verdict for learner in audited.learners} == {"sensitive", "none"}


def test_no_name_is_markup_or_moves_the_cursor(audited) -> None:
    learner, other = (
        replace(each, name=name) for each, name in zip(audited.learners, HOSTILE, strict=True)
    )
    tasks = ("\x1b[2J", "`x`", "*y*")
    hostile = replace(
        audited, learner=learner, comparisons=(other,), tasks=tasks, order_names=("<b>",) * 5
    )
    assert hostile.text().replace("\n", "").isprintable()
    assert len(hostile.text().splitlines()) == len(audited.text().splitlines())
    plain = Page(audited.html())
    attacked = Page(hostile.html())
    assert attacked.tags == plain.tags and attacked.said.count(HOSTILE[0]) >= 5
