"""The page of an audit holds the audit's numbers."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lab.tests.report.synthetic_audit import TASKS, make_audit
from markdown import Markdown

from orderless.audit import OrderSensitivity, order_p_value
from orderless_lab.report.charts import method_styles
from orderless_lab.report.page import write_audit_page
from orderless_lab.report.page.audit import KINDS, audit_page, audit_spot
from orderless_lab.report.page.charts import range_chart
from orderless_lab.report.page.data import Result


@pytest.fixture(scope="module")
def audited() -> OrderSensitivity:
    return make_audit()


@pytest.fixture(scope="module")
def shown(audited: OrderSensitivity) -> Result:
    return audit_page(audited, Path("folder"), "orderless audit a:b --tasks a:c").results[0]


def column(shown: Result, heading: str) -> dict[str, tuple]:
    place = [each["heading"] for each in shown.table["columns"]].index(heading)
    return {r["method"]: (r["values"][place], r["texts"][place]) for r in shown.table["rows"]}


def test_the_table_holds_the_decomposition_and_the_verdict(audited, shown) -> None:
    assert column(shown, "order matters")["mine"][1] == "yes"
    assert column(shown, "order matters")["rb"][1] == "not at all"
    scores = audited.learner.scores
    within = scores.var(axis=1).mean()
    assert column(shown, "order variance")["mine"][0] == pytest.approx(within)
    assert column(shown, "order variance")["mine"][1] == f"{1000 * within:.2f}"
    assert column(shown, "order variance")["rb"] == (0.0, "0")
    assert column(shown, "worst order")["mine"][0] == scores.mean(axis=(0, 2)).min()
    parts = [column(shown, name)["mine"][0] for name in ("order effect", "seed effect")]
    parts.append(column(shown, "interaction")["mine"][0])
    total = scores.var(axis=(0, 1)).mean()
    assert sum(parts) == pytest.approx(total)
    assert column(shown, "total variance")["mine"][0] == pytest.approx(total)
    assert column(shown, "p")["mine"][1] == f"{order_p_value(scores):.4f}"
    assert column(shown, "p")["rb"][1] == "-"


def test_every_verdict_has_a_colour_and_a_headline() -> None:
    from orderless.audit.words import HEADLINES, VERDICTS

    assert set(KINDS) == set(VERDICTS) == set(HEADLINES)


def test_the_answer_stands_on_top_with_the_chance_level(audited) -> None:
    result = audit_page(replace(audited, chance=0.335), Path("folder")).results[0]
    low, high = (100 * f(audited.learner.order_averages) for f in (np.min, np.max))
    assert result.headline == (
        f"The order matters to mine: {low:.1f} % in the worst order tried, {high:.1f} % in the "
        "best; a constant answer has 33.5 %."
    )
    assert "the best constant answer has 33.5." in result.notes[0]


def test_which_task_suffers_in_which_order(audited) -> None:
    chart = range_chart(audited, method_styles(["mine", "rb"]))["tasks-wide"]
    means = 100 * audited.learner.scores.mean(axis=0)  # [O, T]
    for name, values in zip(TASKS, means.T, strict=True):
        (tip,) = re.findall(f'data-tip="mine, {re.escape(html.escape(name))}&#10;(.*?)"', chart)
        mean, worst, best = tip.split("&#10;")
        assert mean == f"mean {values.mean():.1f} %"
        assert worst.startswith(f"worst: {values.min():.1f} %, order {values.argmin()}: ")
        assert best.startswith(f"best: {values.max():.1f} %, order {values.argmax()}: ")


def test_scores_that_hardly_differ_have_an_axis_whose_ticks_can_be_told_apart(audited) -> None:
    matrices = 0.165 + 0.0001 * audited.learner.matrices
    alike = replace(audited, learner=replace(audited.learner, matrices=matrices), comparisons=())
    chart = range_chart(replace(alike, chance=0.165), method_styles(["mine"]))
    ticks = re.findall(r">([0-9.]+)</text>", chart["tasks-wide"])
    assert len(ticks) >= 3 and len(set(ticks)) == len(ticks)
    assert float(ticks[-1]) - float(ticks[0]) >= 1


def test_the_matrices_are_means_over_seeds(audited, shown) -> None:
    expected = audited.learner.matrices[:, 2].mean(axis=0)
    assert np.allclose(shown.matrices["mine"]["2"], expected, atol=5e-4)
    assert shown.orders["2"] == list(audited.orders[2])


def test_the_scatter_has_a_dot_for_every_order(audited) -> None:
    mine, exact = (audit_spot(each, normalized=True) for each in audited.learners)
    assert [dot.name for dot in mine.dots] == list("01234")
    assert exact.order == 0.0
    assert [dot.average for dot in mine.dots] == pytest.approx(audited.learner.order_averages)
    for kind in ("total", "order"):
        assert np.mean([getattr(dot, kind) for dot in mine.dots]) == pytest.approx(
            getattr(mine, kind)
        )


def test_the_page_carries_its_data_and_no_name_becomes_markup(audited, tmp_path) -> None:
    text = write_audit_page(audited, tmp_path / "new" / "folder", "the command").read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    result = json.loads(data)["results"][0]
    assert result["tasks"] == list(TASKS) and result["command"] == "the command"
    assert result["duration"] == 4.0 and result["cells"] == 30
    assert len(text) < 200_000


def test_no_name_is_markup_or_moves_the_cursor_in_the_reports_of_an_audit(audited) -> None:
    names = ("<script>alert(1)</script>", "a | b\n# c")
    learner, other = (
        replace(each, name=name) for each, name in zip(audited.learners, names, strict=True)
    )
    hostile = replace(
        audited, learner=learner, comparisons=(other,), tasks=("\x1b[2J", "`x`", "*y*")
    )
    assert hostile.text().replace("\n", "").isprintable()
    assert len(hostile.text().splitlines()) == len(audited.text().splitlines())
    page = Markdown(extensions=["tables"]).convert(hostile.markdown())
    assert not re.search("<(script|em|h3)[ >]", page) and page.count("<h1>") == 1
    shown = html.unescape(re.sub("<.*?>", "", page))
    assert shown.count("<script>alert(1)</script>") >= 5 and "a | b" in shown
    # the legend names four columns as code, and nothing else is code
    assert page.count("<code>") == audited.markdown().count("`") // 2
