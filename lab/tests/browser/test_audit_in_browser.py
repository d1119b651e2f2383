"""The page of an audit in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.tests.browser.reading import find, find_all, heat, luminance, press

# The audit is that of the report's own tests.
from lab.tests.report.synthetic_audit import TASKS, make_audit

from orderless_lab.report.page import write_audit_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def audit_page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    return write_audit_page(make_audit(), folder, "orderless audit a:b --tasks a:c --out audit")


def test_everything_is_on_the_page(open_page, audit_page):
    browser = open_page(audit_page)
    assert find(browser, "h1").text == "Order sensitivity of mine"
    assert find(browser, "#subtitle").text == "3 tasks, 5 orders x 3 seeds"
    assert "Order sensitivity of mine" in browser.title
    assert len(find_all(browser, "#table tbody tr")) == 2
    assert find(browser, "#findings").location["y"] < find(browser, "#results").location["y"]
    verdicts = [verdict.text for verdict in find_all(browser, "#findings .verdict")]
    assert verdicts == ["mine: yes", "rb: not at all"]
    assert "rb does not depend on the order" in find(browser, "#findings-list").text
    assert len(find_all(browser, "#tasks-chart .mark")) == 2 * len(TASKS)
    assert len(find_all(browser, "#scatter .dot")) == 2 * 5
    cells = find_all(browser, "#matrix-left tbody td")
    assert len(cells) == len(TASKS) ** 2  # the untrained learner was not asked
    assert find(browser, "#command").text.startswith("orderless audit a:b")
    hidden = {section.get_attribute("id") for section in find_all(browser, "section[hidden]")}
    assert hidden == {"weights", "curves", "plasticity", "density", "claims"}


def test_the_slider_shows_another_order(open_page, audit_page):
    browser = open_page(audit_page)
    first, name = heat(browser), find(browser, "#order-name").text
    assert sum("learned" in cell for cell in first) == len(TASKS)  # one frame per task
    press(find(browser, "#order"), "ARROW_RIGHT")
    assert heat(browser) != first and find(browser, "#order-name").text != name


def test_the_table_sorts_by_verdict(open_page, audit_page):
    browser = open_page(audit_page)
    find(browser, "#table thead th:nth-child(2) button").click()
    rows = [row.get_attribute("data-method") for row in find_all(browser, "#table tbody tr")]
    assert rows == ["mine", "rb"]  # what is sensitive first


def test_a_task_names_its_worst_and_best_order_by_keyboard(open_page, audit_page):
    browser = open_page(audit_page)
    mark = find(browser, "#tasks-chart .mark[data-method=mine][data-task='1']")
    browser.execute_script("arguments[0].focus()", mark)
    lines = find(browser, "#tooltip").text.splitlines()
    assert lines[0] == "mine, tuesday"
    assert lines[2].startswith("worst: ") and lines[3].startswith("best: ") and "→" in lines[3]
    names = [text.text for text in find_all(browser, "#tasks-chart .axis")]
    assert names == ["accuracy after the last task, %; dashed: chance", "task"]


@pytest.mark.parametrize("width", [320, 390, 768])
def test_the_body_never_scrolls_sideways(open_page, audit_page, width):
    browser = open_page(audit_page, width=width)
    size = "return [innerWidth, document.documentElement.scrollWidth]"
    visible, needed = browser.execute_script(size)
    assert needed <= visible == width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_verdicts_can_be_read_in_both_schemes(open_page, audit_page, scheme):
    browser = open_page(audit_page, scheme=scheme)
    paper = luminance(find(browser, "body").value_of_css_property("background-color"))
    for verdict in find_all(browser, "#findings .verdict, #findings .evidence"):
        ink = luminance(verdict.value_of_css_property("color"))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5


def test_an_ordinary_report_has_no_findings(open_page, page):
    browser = open_page(page)
    assert find(browser, "#findings").get_attribute("hidden") is not None
    assert find(browser, "#suffering").get_attribute("hidden") is not None
