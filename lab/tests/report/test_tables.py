"""The five forms of a table say the same numbers."""

import csv
import html
import io
import json
import re
import sys
from dataclasses import replace

import pytest
from lab.tests.report.synthetic_cells import LEVELS, make_cell, write_run
from markdown import Markdown

from orderless_lab.report import ReportError, Summary, format_table, summarize
from orderless_lab.report.columns import (
    MISSING,
    VARIED,
    columns_of,
    percent,
    row_label,
    seen_variance,
    small,
)
from orderless_lab.report.page.data import summary_table
from orderless_lab.report.tables import format_json
from orderless_lab.storage.typed import decode


@pytest.fixture
def summary(full_summary):
    return full_summary


def test_every_printed_form_has_every_method_and_its_average(summary):
    for kind in ("text", "markdown", "latex"):
        text = format_table(summary, kind)
        for entry in summary.methods.values():
            assert f"{100 * entry.average:.1f}" in text
    for kind in ("text", "markdown", "csv", "json"):
        assert all(name in format_table(summary, kind) for name in LEVELS)


def test_csv_holds_the_exact_fractions(summary):
    rows = list(csv.DictReader(io.StringIO(format_table(summary, "csv"))))
    assert [row["method"] for row in rows] == list(LEVELS)
    for row in rows:
        entry = summary.methods[row["method"]]
        for key in ("average", "variance", "order_variance", "normalized_variance", "nll"):
            assert float(row[key]) == getattr(entry, key)
        assert [float(row["interval_low"]), float(row["interval_high"])] == entry.interval
        assert row["benchmark"] == "splitmnist"


def test_json_is_one_object_for_one_table_and_a_list_for_several(summary):
    one = json.loads(format_table(summary, "json"))
    assert decode(Summary, one) == summary
    assert json.loads(format_json([summary, summary])) == [one, one]


def test_printed_tables_do_not_depend_on_how_long_a_run_took(write_cells, tmp_path):
    tables = []
    for duration in (1.0, 99.0):
        cells = [make_cell("gd", order, 0, duration=duration) for order in range(3)]
        (summary,) = summarize(write_cells(cells, tmp_path / str(duration)))
        kinds = ("text", "markdown", "csv", "latex")
        tables.append([format_table(summary, kind) for kind in kinds])
    assert tables[0] == tables[1]


def test_the_text_fits_a_terminal_and_says_what_tabulate_is_for(summary, monkeypatch):
    assert max(map(len, format_table(summary, "text").splitlines())) < 157
    monkeypatch.setitem(sys.modules, "tabulate", None)
    with pytest.raises(ReportError, match=r"pip install 'orderless\[report\]'"):
        format_table(summary, "text")


def test_one_order_and_one_seed_show_no_variance_instead_of_zero(write_cells):
    (summary,) = summarize(write_cells([make_cell("gd", 0, 0)]))
    text = format_table(summary, "text")
    assert "variance" not in text.split("Note")[0] and "interval" not in text.split("Note")[0]
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
    entry = summary.methods["gd"]
    names = {name for name in VARIED if seen_variance(entry, name) is not None}
    assert {name for name in names if not name.startswith("normalized")} == seen
    page = summary_table(summary)
    shown = dict(
        zip((c["heading"] for c in page["columns"]), page["rows"][0]["texts"], strict=True)
    )
    for name, heading in (("order_variance", "order variance"), ("variance", "total variance")):
        there = shown.get(heading, MISSING) != MISSING
        # with one seed the total would say once more what the order variance says
        assert there == (name in seen and (name, len({s for _, s in places})) != ("variance", 1))


def test_a_row_with_fewer_runs_is_named_and_wins_nothing(write_cells):
    cells = [make_cell(name, order, 0) for name in ("gd", "averaging") for order in range(3)]
    (summary,) = summarize(write_cells([*cells, make_cell("wpf", 0, 0)]))
    averages = {name: entry.average for name, entry in summary.methods.items()}
    assert averages["wpf"] == max(averages.values())
    assert "The rows do not all stand on the same seeds and orders (wpf)." in summary.notes
    assert any(note.startswith("One order only (wpf): ") for note in summary.notes)
    assert any(note.startswith("One seed only: ") for note in summary.notes)
    assert row_label("wpf", summary.methods) == "Weighted particle filter (1 order)"
    assert row_label("gd", summary.methods) == "Gradient descent"
    best = {row["method"]: row["best"] for row in summary_table(summary)["rows"]}
    assert not any(best["wpf"]) and best["gd"][0] != best["averaging"][0]


def test_latex_is_escaped_and_balanced(write_cells):
    cells = [make_cell(name, order, 0) for name in ("my_method&co", "rb") for order in range(2)]
    (summary,) = summarize(write_cells(cells))
    text = format_table(summary, "latex")
    assert re.search(r" my\\_method\\&co +& ", text)
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    columns = text.split(r"\begin{tabular}{")[1].split("}")[0]
    assert {line.replace(r"\&", "").count("&") for line in body} == {len(columns) - 1}


def test_latex_has_powers_of_ten(summary):
    variance = f"{summary.methods['rb'].seed_variance:.1e}"
    digits, exponent = variance.split("e")
    text = format_table(summary, "latex")
    assert rf"${digits}\cdot 10^{{{int(exponent)}}}$" in text and variance not in text


# ---------------------------------------------------------------------- names are names

HOSTILE = [
    "=cmd|'/C calc'!A0",
    r"\input{/etc/passwd}",
    "\\write18{rm}\n\\end{tabular}",
    "\x1b[31mred\x1b[0m",
    "<script>alert(1)</script>",
    "a | b",
    "`code` *bold* [link](http://x)",
    "\u202egnp.exe",
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    names = dict(preset="@SUM(A1)", benchmark="<b>\x07</b>\n# heading")
    cells = [make_cell(name, order, 0, **names) for name in HOSTILE for order in range(2)]
    (summary,) = summarize(write_run(tmp_path_factory.mktemp("hostile"), cells))
    return replace(summary, notes=[f"{HOSTILE[4]}: \x1b[2J is a note."])


def test_no_form_sends_control_characters(hostile):
    for kind in ("text", "markdown", "csv", "latex", "json"):
        rest = format_table(hostile, kind).replace("\n", "")
        assert rest.isprintable(), kind
    lines = format_table(hostile, "text").splitlines()
    assert len(lines) == 1 + 3 + len(HOSTILE) + 1 + 2  # no name breaks a line


def test_no_csv_cell_is_a_formula(hostile):
    rows = list(csv.DictReader(io.StringIO(format_table(hostile, "csv"))))
    assert len(rows) == len(HOSTILE)
    for row in rows:
        for key in ("benchmark", "scenario", "preset", "method"):
            assert row[key][0] not in "=+-@\t\r"
    assert rows[0]["preset"] == "'@SUM(A1)"


def test_no_name_is_a_latex_command(hostile):
    text = format_table(hostile, "latex")
    comment, *lines = text.splitlines()
    assert comment.startswith("% ") and lines[0].startswith(r"\begin{tabular}")
    commands = set(re.findall(r"\\([a-zA-Z]+|.)", "\n".join(lines)))
    layout = {"begin", "toprule", "midrule", "bottomrule", "end", "\\", "cdot"}
    letters = {"textbackslash", "textasciitilde", "ensuremath", *"_&%#{}$^"}
    assert commands <= layout | letters
    assert text.count(r"\end{tabular}") == 1


def test_no_name_is_markup_in_markdown(hostile):
    # mkdocs' own converter, with tables, is the judge
    page = Markdown(extensions=["tables"]).convert(format_table(hostile, "markdown"))
    assert not re.search("<(script|b|a|em|strong|h1)[ >]", page)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page)
    columns = 1 + len(columns_of(hostile))
    assert len(cells) == columns * len(HOSTILE)
    shown = {html.unescape(re.sub("<.*?>", "", cell)) for cell in cells[::columns]}
    assert "<script>alert(1)</script>" in shown and "a | b" in shown


def test_numbers_are_written_readably():
    assert percent(0.7234) == "72.3" and percent(None) == "-"
    assert small(0.0) == "0" and small(0.00123) == "0.0012" and small(1.234e-5) == "1.2e-05"


def test_unknown_form_is_refused(summary):
    with pytest.raises(ValueError, match="kind must be one of text, markdown"):
        format_table(summary, "html")
