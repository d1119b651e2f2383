"""What readers are shown: true sentences, and five forms of a table with the same numbers."""

import csv
import html
import io
import json
import re

import numpy as np
import pytest
from lab.tests.toys import LEVELS, constant, make_cells
from markdown import Markdown
from tests.cli.commands import run

from orderless_lab.report import format_table
from orderless_lab.report.columns import written
from orderless_lab.report.sentences import undominated
from orderless_lab.report.tables import readable

DEMO = {"gd": [0.79, 0.73, 0.77], "wpf": [0.74, 0.75, 0.76], "joint": [0.82] * 3,
        "product": [0.97] * 3}  # fmt: skip


def demo(method, order, seed):
    return DEMO[method][order]


def test_every_form_has_every_method_and_its_average_the_highest_first(full_summary):
    ranked = sorted(LEVELS, key=lambda name: -full_summary.numbers["average"][name])
    for kind in ("text", "markdown", "latex"):
        text = format_table(full_summary, kind)
        for name, average in full_summary.numbers["average"].items():
            assert f"{100 * average:.1f}" in text
            assert (full_summary.table.label(name) if kind == "latex" else name) in text
    assert list(readable(full_summary).index) == ranked


def test_the_text_has_seven_columns_within_110_characters(full_summary):
    assert list(readable(full_summary).columns) == [
        "average", "margin", "task_sd", "worst_order", "just_learned", "forgetting",
    ]  # fmt: skip
    assert max(map(len, format_table(full_summary, "text").splitlines())) <= 110


def test_csv_holds_the_exact_fractions_and_json_everything(full_summary):
    rows = list(csv.DictReader(io.StringIO(format_table(full_summary, "csv"))))
    assert [row["method"] for row in rows] == list(LEVELS)
    for row in rows:
        line = full_summary.numbers.loc[row["method"]]
        for key in ("average", "variance", "order_variance", "normalized_variance", "nll"):
            assert float(row[key]) == line[key]
        assert (row["benchmark"], row["orders"], row["seeds"]) == ("splitmnist", "6", "3")
    one = json.loads(format_table(full_summary, "json"))
    assert one == full_summary.as_json()
    assert json.loads(format_table([full_summary, full_summary], "json")) == [one, one]


def test_numbers_are_written_readably():
    assert written("score", 0.7234) == "72.3" and written("score", 0.7234, True) == "0.723"
    assert written("points", 0.0) == "0" and written("points", 0.0002) == "<0.1"
    assert written("share", 0.75, True) == "75.0" and written("score", float("nan")) == "-"


# ---------------------------------------------------------------------- sentences


def test_the_headline_names_the_best_row_and_the_filter_beside_one_network(ruled_by):
    sentence = ruled_by(demo, list(DEMO)).headline
    start, rest = sentence.split(". ", 1)
    assert "Product of task posteriors 97.0% (the same in all 3 orders)" in start
    for name in ("wpf", "gd"):
        sd = f"{100 * np.std(DEMO[name]):.1f} points"
        assert f"{100 * np.mean(DEMO[name]):.1f}% (sd of a task over orders {sd})" in rest
    assert "higher in 1 of 3 orders, too few to tell them apart" in rest


def test_an_interval_that_passes_100_percent_is_said_to_end_there(ruled_by):
    wide = {"gd": [0.5, 0.6, 0.7], "wpf": [0.9, 1.0, 0.8], "joint": [1.0] * 3}
    summary = ruled_by(lambda method, order, seed: wide[method][order], list(wide))
    assert summary.numbers["average"]["wpf"] + summary.numbers["margin"]["wpf"] > 1
    (note,) = [note for note in summary.notes if "passes 100%" in note]
    assert "(Weighted particle filter)" in note
    assert not [note for note in ruled_by(demo, list(DEMO)).notes if "passes 100%" in note]


def test_a_row_that_broke_down_or_sees_all_tasks_or_lacks_runs_is_not_the_best(summary_of):
    cells = make_cells("gd", "wpf", orders=3)
    cells += make_cells("joint", orders=3, scores=constant(1.0))
    cells += make_cells("ewc", orders=3, scores=constant(1.0), died_at=3)
    cells += make_cells("lwf", orders=2, scores=constant(1.0))
    summary = summary_of(cells)
    above, rest = summary.headline.split(": ", 1)
    assert all(label in above for label in ("EWC", "Joint training", "LwF"))
    assert rest.startswith("Weighted particle filter")
    assert any("EWC" in note and "3 of 3 cells" in note for note in summary.notes)
    assert any("do not all stand on the same" in note and "LwF" in note for note in summary.notes)


def test_no_row_of_the_page_is_both_higher_and_steadier_than_those_named(full_summary, ruled_by):
    numbers = full_summary.numbers
    named = undominated(numbers)
    assert "product" in named  # highest, and the same in every order
    for name in named:
        higher = numbers["average"] > numbers["average"][name]
        assert not (higher & (numbers["task_sd"] < numbers["task_sd"][name])).any()
    # 88 with variance 0 is not beaten by a higher row that varies
    summary = ruled_by(lambda n, o, _: 0.88 if n == "gd" else 0.9 + 0.01 * o, ["gd", "wpf"])
    assert undominated(summary.numbers) == ["wpf", "gd"]
    assert undominated(ruled_by(demo, list(DEMO)).numbers) == ["product"]


def test_a_row_that_never_learned_is_named_with_what_it_knew(summary_of):
    low = make_cells("gd", orders=2, scores=constant(0.129, untrained=0.1))
    high = make_cells("wpf", orders=2, scores=constant(0.9, untrained=0.1))
    notes = summary_of(low + high).notes
    (note,) = [note for note in notes if "raise lr or epochs" in note]
    assert "Gradient descent knew 13% (before: 10%) of a task right after training" in note


def test_rows_with_the_same_numbers_are_named(summary_of):
    same = make_cells("gd", "si", orders=2, scores=constant(0.8))
    other = make_cells("wpf", orders=2, scores=constant(0.7))
    (note,) = [note for note in summary_of(same + other).notes if "same numbers" in note]
    assert "Gradient descent and SI" in note


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


@pytest.fixture
def hostile(summary_of):
    names = {"preset": "@SUM(A1)", "benchmark": "<b>\x07</b>\n# heading"}
    return summary_of(make_cells(*HOSTILE, orders=2, **names))


def test_no_form_sends_control_characters(hostile):
    for kind in ("text", "markdown", "csv", "latex", "json"):
        assert format_table(hostile, kind).replace("\n", "").isprintable(), kind


def test_no_csv_cell_is_a_formula(hostile):
    rows = list(csv.DictReader(io.StringIO(format_table(hostile, "csv"))))
    assert len(rows) == len(HOSTILE)
    for row in rows:
        for key in ("benchmark", "variant", "preset", "method"):
            assert row[key][0] not in "=+-@\t\r"


def test_no_name_is_a_latex_command(hostile):
    lines = format_table(hostile, "latex").splitlines()
    assert lines[0].startswith("% ") and lines[1].startswith(r"\begin{tabular}")
    commands = set(re.findall(r"\\([a-zA-Z]+|.)", "\n".join(lines[1:])))
    layout = {"begin", "toprule", "midrule", "bottomrule", "end", "\\"}
    letters = {"textbackslash", "textasciitilde", "textasciicircum", "space", *"_&%#{}$"}
    assert commands <= layout | letters
    assert "\n".join(lines).count(r"\end{tabular}") == 1


def test_no_name_is_markup_in_markdown(hostile):
    # mkdocs' own converter, with tables, is the judge
    page = Markdown(extensions=["tables"]).convert(format_table(hostile, "markdown"))
    assert not re.search("<(script|b|a|em|strong|h1)[ >]", page)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page)
    columns = 1 + len(readable(hostile).columns)
    assert len(cells) == columns * len(HOSTILE)
    shown = {html.unescape(re.sub("<.*?>", "", cell)) for cell in cells[::columns]}
    assert "<script>alert(1)</script>" in shown and "a | b" in shown


def test_an_unknown_form_is_refused(full_summary):
    with pytest.raises(ValueError, match="html"):
        format_table(full_summary, "html")


def test_the_command_prints_several_runs_and_writes_them_where_it_is_told(write_cells, tmp_path):
    runs = [write_cells(make_cells(name), name) for name in ("gd", "si")]
    printed = run("report", *runs).stdout
    assert "\ngd" in printed and "\nsi" in printed
    assert not list(tmp_path.rglob("report.*"))
    run("report", *runs, "--out", tmp_path / "both")
    assert (tmp_path / "both" / "report.html").is_file()
    content = json.loads(run("report", *runs, "--json").stdout)
    assert set(content["methods"]) == {"gd", "si"}
