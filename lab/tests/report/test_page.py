"""The report page without a browser: what it holds, and that nothing can break out of it."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from lab.tests.toys import TASKS, constant, make_cells

from orderless_lab.report.page import render

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Elements(HTMLParser):
    """All elements of a page, its script, and the cells of its table of results, row by row."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.script, self.rows = [], "", []
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self._open = tag
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append(["", dict(attributes)])

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, text):
        if self._open == "script":
            self.script += text
        elif self._open in ("td", "th"):
            self.rows[-1][-1][0] += text


@pytest.fixture(scope="module")
def page(full_summary):
    return render([full_summary])


def test_the_page_is_small_and_asks_for_nothing(page):
    assert len(page) < 500_000
    for tag, attributes in Elements(page).tags:
        assert "src" not in attributes, tag
        for name in ("href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#"), tag
        assert not any(name.startswith("on") for name in attributes), tag
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest|import\(", page)


def test_the_policy_admits_this_script_and_no_network(page):
    elements = Elements(page)
    (policy,) = [a["content"] for _, a in elements.tags if a.get("http-equiv")]
    digest = base64.b64encode(hashlib.sha256(elements.script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';") and "http" not in policy


def test_the_script_is_at_most_forty_lines(page):
    assert len(Elements(page).script.splitlines()) <= 40


def test_identifiers_of_several_figures_are_kept_apart(full_summary):
    names = [a["id"] for _, a in Elements(render([full_summary, full_summary])).tags if "id" in a]
    assert len(names) == len(set(names)) > 3


def test_a_hostile_name_stays_a_name(summary_of):
    names = [HOSTILE, "{{ script }}", "<!--<script>", "&lt;", "\ud800"]
    changes = {"benchmark": HOSTILE, "preset": HOSTILE, "variant": HOSTILE, "task_names": names}
    changes |= {"command": HOSTILE, "device": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    changes |= {"settings": {HOSTILE: HOSTILE}}
    page = render([summary_of(make_cells(HOSTILE, orders=2, **changes))])
    elements = Elements(page)
    tags = [tag for tag, _ in elements.tags]
    assert tags.count("script") == 1 and "img" not in tags and "<!--" not in page
    assert HOSTILE in [cell for row in elements.rows for cell, _ in row]


def best_of(summary, column):
    """The rows whose entry in a column is marked as the best."""
    headings, *rows = Elements(render([summary])).rows
    place = 1 + list(summary.numbers.columns).index(column)
    assert place < len(headings)
    return [row[0][0] for row in rows if len(row) > place and row[place][1].get("class") == "best"]


def test_the_best_entry_is_marked_and_broken_or_joint_rows_win_nothing(summary_of):
    cells = make_cells("wpf", "gd", "lwf+wpf", orders=3)
    cells += make_cells("joint", orders=3, scores=constant(1.0))
    cells += make_cells("ewc", orders=3, scores=constant(1.0), died_at=3)
    assert best_of(summary_of(cells), "average") == ["LwF + WPF"]


def test_a_matrix_is_the_mean_over_runs_by_place_in_the_order(summary_of):
    cells = make_cells("gd", orders=2)
    expected = np.mean(
        [np.array(cell["scores"]["particles"])[:, cell["order"]] for cell in cells], axis=0
    )
    rows = [row for row in Elements(render([summary_of(cells)])).rows if row[0][0][:5] == "after"]
    shown = [[int(cell) for cell, _ in row[1:]] for row in rows]
    assert shown == [[int(f"{100 * value:.0f}") for value in row] for row in expected]
    framed = [[a.get("class") for _, a in row[1:]].index("learned") for row in rows[1:]]
    assert framed == list(range(TASKS))
