"""What a reader is shown: one true sentence, the best first, and no row that does nothing."""

import numpy as np
import pytest
from lab.tests.report.synthetic_cells import LEVELS, TASKS, make_cell

from orderless_lab.report import format_table, load_run, summarize
from orderless_lab.report.columns import columns_of
from orderless_lab.report.figures import figure2
from orderless_lab.report.page import page_data
from orderless_lab.report.reading import headline, readable, telling_pair


def built(write_cells, averages, orders=3, seeds=1):
    """A run in which every order of a method has the given average, one after another."""
    cells = []
    for method, values in averages.items():
        for order in range(orders):
            for seed in range(seeds):
                value = values if isinstance(values, float) else values[order]
                matrix = np.full((TASKS + 1, TASKS), value).tolist()
                cells.append(make_cell(method, order, seed, scores={"accuracy": matrix}))
    return write_cells(cells)


DEMO = {
    "gd": [0.79, 0.73, 0.77],
    "si": [0.79, 0.73, 0.77],
    "wpf": [0.74, 0.75, 0.76],
    "si+wpf": [0.74, 0.75, 0.76],
    "joint": 0.82,
    "rb": 0.969,
}


def test_rows_stand_by_average_with_order_variance_as_the_second_column(full_summary, full_page):
    ranked = sorted(LEVELS, key=lambda name: -full_summary.methods[name].average)
    for kind in ("text", "markdown"):
        lines = format_table(full_summary, kind).splitlines()
        first = [(line.strip("| ").split() or [""])[0].strip("`") for line in lines]
        assert [word for word in first if word in LEVELS] == ranked
    headings = [column.heading for column in columns_of(full_summary)]
    assert headings[:2] == ["average", "order variance"]
    (result,) = full_page.results
    assert [row["method"] for row in result.table["rows"]] == ranked


def test_the_headline_says_who_is_best_and_how_the_filter_does_beside_one_network(write_cells):
    (summary,) = summarize(built(write_cells, DEMO))
    entry = summary.methods["gd"]
    assert headline(summary) == (
        "Highest average: Exact filter 96.9 % (the same in all 3 orders); "
        f"Weighted particle filter 75.0 % (order variance {np.var(DEMO['wpf']):.2g}); "
        f"Gradient descent 76.3 % (order variance {np.var(DEMO['gd']):.2g}); "
        "the filter is above the single network in 1 of 3 orders, too few to tell them apart."
    )
    assert entry.average == pytest.approx(np.mean(DEMO["gd"]))
    for kind in ("text", "markdown"):
        assert "the same in all 3 orders" in format_table(summary, kind)
    text = format_table(summary, "text")
    assert text.index("Highest average") > text.index("gd ")  # after the table


def test_enough_orders_are_not_called_few_and_one_method_is_not_the_highest(write_cells, tmp_path):
    rising = [0.6 + 0.01 * order for order in range(6)]
    methods = {"wpf": [value + 0.05 for value in rising], "gd": rising}
    (summary,) = summarize(built(write_cells, methods, orders=6))
    assert headline(summary).endswith("in 6 of 6 orders.")
    (alone,) = summarize(write_cells([make_cell("gd", 0, 0)], tmp_path / "one"))
    assert headline(alone).startswith("Gradient descent ") and "variance" not in headline(alone)


def test_two_orders_are_both(write_cells):
    (summary,) = summarize(built(write_cells, {"rb": 0.9}, orders=2))
    assert headline(summary) == "Exact filter 90.0 % (the same in both orders)."


def test_a_row_that_broke_down_or_sees_all_tasks_is_not_called_the_best(write_cells):
    ones = {"scores": {"accuracy": np.ones((TASKS + 1, TASKS)).tolist()}}
    cells = [make_cell(name, order, 0) for name in ("gd", "wpf") for order in range(3)]
    cells += [make_cell("joint", order, 0, **ones) for order in range(3)]
    cells += [make_cell("ewc", order, 0, **ones, died_at=3) for order in range(3)]
    (summary,) = summarize(write_cells(cells))
    start = "Highest average except EWC and Joint training: Weighted particle filter"
    assert headline(summary).startswith(start)
    assert telling_pair(summary) == ["wpf", "gd"]


@pytest.mark.slow
def test_a_row_that_does_nothing_is_a_note_and_no_result(write_cells):
    directory = built(write_cells, DEMO)
    (summary,) = summarize(directory)
    assert list(readable(summary).methods) == ["rb", "joint", "gd", "wpf"]
    assert readable(readable(summary)) == readable(summary)
    text = format_table(summary, "text")
    assert "Note: SI (si) is not shown: every figure of it is that of Gradient descent" in text
    assert "SI + WPF (si+wpf) is not shown" in text
    assert "\nsi " not in text and "si" in format_table(summary, "csv")
    (result,) = page_data(load_run(directory), [summary]).results
    assert set(result.methods) == set(result.matrices) == {"rb", "joint", "gd", "wpf"}
    drawn = [t.get_text() for t in figure2([summary]).axes[1].get_legend().get_texts()]
    assert "SI" not in drawn and len(drawn) == 4


def test_two_rows_that_differ_in_one_digit_are_both_results(write_cells):
    nearly = {**DEMO, "si": [0.79, 0.73, 0.772]}
    (summary,) = summarize(built(write_cells, nearly))
    assert "si" in readable(summary).methods


@pytest.mark.parametrize(("orders", "heading"), [(3, "range over 3 orders"), (6, "95 % interval")])
def test_few_orders_have_a_range_and_no_interval(write_cells, orders, heading):
    values = [0.70 + 0.01 * order for order in range(orders)]
    (summary,) = summarize(built(write_cells, {"gd": values}, orders=orders))
    third = columns_of(summary)[2]
    assert third.heading == heading
    low, high = (float(part) for part in third.text(summary.methods["gd"]).split(" to "))
    if orders == 3:
        assert (low, high) == (70.0, 72.0)
    else:
        assert 70.0 < low < high < 75.0
    assert ("95 %" in format_table(summary, "text")) == (orders == 6)


def test_a_column_that_says_nothing_is_left_out(write_cells):
    (summary,) = summarize(built(write_cells, DEMO))
    headings = [column.heading for column in columns_of(summary)]
    assert "seed variance" not in headings and "total variance" not in headings
    assert "by logits" not in headings  # these cells were scored one way only


def test_matrices_open_on_the_best_method_beside_one_network(write_cells, full_page):
    (result,) = full_page.results
    assert result.pair == ["rb", "gd"]
