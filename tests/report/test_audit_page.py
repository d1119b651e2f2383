"""The page of an audit holds the audit's numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.report.synthetic_audit import TASKS, make_audit

from orderless.audit import OrderSensitivity, order_p_value
from orderless.report.page import write_audit_page
from orderless.report.page.audit import KINDS, audit_data


@pytest.fixture(scope="module")
def audited() -> OrderSensitivity:
    return make_audit()


@pytest.fixture(scope="module")
def shown(audited: OrderSensitivity) -> dict:
    return audit_data(audited, Path("folder"), "orderless audit a:b --tasks a:c")["results"][0]


def column(shown: dict, heading: str) -> dict[str, tuple]:
    headings = [each["heading"] for each in shown["table"]["columns"]]
    place = headings.index(heading)
    return {
        row["method"]: (row["values"][place], row["texts"][place]) for row in shown["table"]["rows"]
    }


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


def test_every_verdict_has_a_colour() -> None:
    from orderless.audit.words import VERDICTS

    assert set(KINDS) == set(VERDICTS)


def test_which_task_suffers_in_which_order(audited, shown) -> None:
    means = audited.learner.scores.mean(axis=0)  # [O, T]
    for entry in shown["suffering"]:
        if entry["method"] == "mine":
            low, high = entry["low"], entry["high"]
            values = means[:, entry["task"]]
            assert (low["order"], high["order"]) == (values.argmin(), values.argmax())
            assert low["score"] == pytest.approx(values.min(), abs=5e-4)  # three decimals
            assert high["score"] == pytest.approx(values.max(), abs=5e-4)
    assert len(shown["suffering"]) == 2 * len(TASKS)


def test_the_matrices_are_means_over_seeds(audited, shown) -> None:
    expected = audited.learner.matrices[:, 2].mean(axis=0)
    assert np.allclose(shown["matrices"]["mine"]["2"], expected, atol=5e-4)
    assert shown["orders"]["2"] == list(audited.orders[2])


def test_the_scatter_has_a_dot_for_every_order(audited, shown) -> None:
    mine, exact = shown["scatter"]["points"]
    assert [dot[0] for dot in mine["dots"]] == list(range(5))
    assert exact["order"] == 0.0
    averages = audited.learner.order_averages
    assert [dot[1] for dot in mine["dots"]] == pytest.approx(averages, rel=1e-3)


def test_the_page_carries_its_data_and_no_name_becomes_markup(audited, tmp_path) -> None:
    text = write_audit_page(audited, tmp_path, "the command").read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    result = json.loads(data)["results"][0]
    assert result["tasks"] == list(TASKS) and result["command"] == "the command"
    assert result["duration"] == 4.0 and result["cells"] == 30
    assert len(text) < 200_000
