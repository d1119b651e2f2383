"""The five forms of a table say the same numbers."""

import builtins
import csv
import io
import json

import pytest
from tests.report.synthetic_cells import LEVELS, make_cell

from orderless.report import format_table, summarize
from orderless.report.page.table import table_data
from orderless.report.tables import (
    MISSING,
    VARIED,
    format_json,
    percent,
    row_label,
    seen_variance,
    small,
)


@pytest.fixture
def summary(full_run):
    (only,) = summarize(full_run)
    return only


def test_every_printed_form_has_every_method_and_its_average(summary):
    for kind in ("text", "markdown", "latex"):
        text = format_table(summary, kind)
        for entry in summary["methods"].values():
            assert f"{100 * entry['average']:.1f}" in text
    for kind in ("text", "markdown", "csv", "json"):
        assert all(name in format_table(summary, kind) for name in LEVELS)


def test_csv_holds_the_exact_fractions(summary):
    rows = list(csv.DictReader(io.StringIO(format_table(summary, "csv"))))
    assert [row["method"] for row in rows] == list(LEVELS)
    for row in rows:
        entry = summary["methods"][row["method"]]
        for key in ("average", "variance", "order_variance", "normalized_variance", "nll"):
            assert float(row[key]) == entry[key]
        assert [float(row["interval_low"]), float(row["interval_high"])] == entry["interval"]
        assert row["benchmark"] == "splitmnist"


def test_json_is_one_object_for_one_table_and_a_list_for_several(summary):
    assert json.loads(format_table(summary, "json")) == summary
    assert json.loads(format_json([summary, summary])) == [summary, summary]


def test_printed_tables_do_not_depend_on_how_long_a_run_took(write_cells, tmp_path):
    tables = []
    for duration in (1.0, 99.0):
        cells = [make_cell("gd", order, 0, duration=duration) for order in range(3)]
        (summary,) = summarize(write_cells(cells, tmp_path / str(duration)))
        kinds = ("text", "markdown", "csv", "latex")
        tables.append([format_table(summary, kind) for kind in kinds])
    assert tables[0] == tables[1]


def test_text_without_rich_has_the_same_numbers(summary, monkeypatch):
    def numbers(text):
        words = text.replace(",", " ").split()
        return [word for word in words if word[0].isdigit() and word != "95"]

    with_rich = format_table(summary, "text")
    assert "─" in with_rich
    real_import = builtins.__import__

    def without_rich(name, *rest, **named):
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real_import(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    plain = format_table(summary, "text")
    assert "─" not in plain
    assert numbers(plain) == numbers(with_rich)
    assert max(map(len, plain.splitlines())) < 150


def test_one_order_and_one_seed_show_no_variance_instead_of_zero(write_cells):
    (summary,) = summarize(write_cells([make_cell("gd", 0, 0)]))
    row = format_table(summary, "markdown").splitlines()[4].split(" | ")
    assert row[2] == "-" and row[5:10] == ["-"] * 5
    text = format_table(summary, "text")
    assert "One order only: " in text and "One seed only: " in text


@pytest.mark.parametrize(
    ("places", "seen"),
    [
        ([(0, 0)], set()),
        ([(0, 0), (1, 0)], {"variance", "order_variance"}),
        ([(0, 0), (0, 1)], {"variance", "seed_variance"}),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], {"variance", "order_variance", "seed_variance"}),
    ],
)
def test_a_variance_is_seen_where_something_varied(write_cells, places, seen):
    (summary,) = summarize(write_cells([make_cell("gd", *place) for place in places]))
    entry = summary["methods"]["gd"]
    names = {name for name in VARIED if seen_variance(entry, name) is not None}
    assert {name for name in names if not name.startswith("normalized")} == seen
    page = table_data(summary)
    shown = dict(
        zip((c["heading"] for c in page["columns"]), page["rows"][0]["texts"], strict=True)
    )
    for name, heading in (("order_variance", "order variance"), ("variance", "total variance")):
        assert (shown[heading] != MISSING) == (name in seen)


def test_a_row_with_fewer_runs_is_named_and_wins_nothing(write_cells):
    cells = [make_cell(name, order, 0) for name in ("gd", "averaging") for order in range(3)]
    (summary,) = summarize(write_cells([*cells, make_cell("wpf", 0, 0)]))
    averages = {name: entry["average"] for name, entry in summary["methods"].items()}
    assert averages["wpf"] == max(averages.values())
    assert "The rows do not all stand on the same seeds and orders (wpf)." in summary["notes"]
    assert any(note.startswith("One order only (wpf): ") for note in summary["notes"])
    assert any(note.startswith("One seed only: ") for note in summary["notes"])
    assert row_label("wpf", summary["methods"]) == "Weighted particle filter (1 order)"
    assert row_label("gd", summary["methods"]) == "Gradient descent"
    best = {row["method"]: row["best"] for row in table_data(summary)["rows"]}
    assert not any(best["wpf"]) and best["gd"][0] != best["averaging"][0]


def test_latex_is_escaped_and_balanced(write_cells):
    cells = [make_cell(name, order, 0) for name in ("my_method&co", "rb") for order in range(2)]
    (summary,) = summarize(write_cells(cells))
    text = format_table(summary, "latex")
    assert r"my\_method\&co & " in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    columns = text.split(r"\begin{tabular}{")[1].split("}")[0]
    assert {line.replace(r"\&", "").count("&") for line in body} == {len(columns) - 1}
    assert "e-" not in text.replace("\\times", "")


def test_numbers_are_written_readably():
    assert percent(0.7234) == "72.3" and percent(None) == "-"
    assert small(0.0) == "0" and small(0.00123) == "0.0012" and small(1.234e-5) == "1.2e-05"


def test_unknown_form_is_refused(summary):
    with pytest.raises(ValueError, match="kind must be one of text, markdown"):
        format_table(summary, "html")
