"""The numbers of rows against numpy on the same cells, and grids that are not finished."""

import base64
import itertools
import json

import numpy as np
import pytest
from lab.tests.toys import LEVELS, TASKS, make_cell, make_cells

from orderless import metrics
from orderless_lab.report import ReportError, format_table, summarize
from orderless_lab.report.columns import NUMBERS, number
from orderless_lab.report.frame import complete_block
from orderless_lab.report.page import render


def final_scores(method, seeds=range(3), orders=range(6)):
    return np.array(
        [[make_cell(method, o, s)["scores"]["particles"][-1] for o in orders] for s in seeds]
    )


def test_the_numbers_equal_numpy_on_the_same_cells(full_summary):
    assert list(full_summary.numbers.index) == list(LEVELS)
    for name, line in full_summary.numbers.iterrows():
        scores = final_scores(name)
        assert line["average"] == pytest.approx(scores.mean())
        assert line["average_logits"] == pytest.approx(0.9 * scores.mean())
        assert line["average_probs"] == pytest.approx(0.8 * scores.mean())
        assert line["order_variance"] == pytest.approx(scores.var(axis=1).mean(), abs=1e-15)
        assert line["task_sd"] == pytest.approx(scores.var(axis=1).mean() ** 0.5, abs=1e-8)
        assert line["seed_variance"] == pytest.approx(scores.var(axis=0).mean())
        assert line["variance"] == pytest.approx(scores.var(axis=(0, 1)).mean())
        assert line["worst_order"] == pytest.approx(scores.mean(axis=(0, 2)).min())
    methods = full_summary.methods
    assert methods["gd"]["order_averages"] == pytest.approx(final_scores("gd").mean(axis=(0, 2)))
    assert (methods["gd"]["seeds"], methods["gd"]["orders"], methods["gd"]["cells"]) == (3, 6, 18)
    assert methods["product"]["order_variance"] == 0.0


@pytest.mark.parametrize(
    ("column", "of_one_run"),
    [
        ("just_learned", metrics.just_learned),
        ("bwt", metrics.backward_transfer),
        ("forgetting", metrics.forgetting),
    ],
)
def test_transfer_is_the_mean_over_runs(full_summary, column, of_one_run):
    cells = make_cells("gd", orders=6, seeds=3)
    each = [of_one_run(cell["scores"]["particles"], cell["order"]) for cell in cells]
    assert full_summary.numbers[column]["gd"] == pytest.approx(np.mean(each))


def test_the_last_sample_size_is_the_mean_over_runs(full_summary):
    assert full_summary.numbers["ess_final"]["gd"] == 6.0  # 5 + seed, seeds 0, 1, 2


def test_the_released_scoring_and_the_verdicts_know_a_weighted_method_by_its_field(summary_of):
    described = {"name": "mine", "label": "Mine", "weighted": True}
    mine = make_cells("mine", orders=6, described=described)
    summary = summary_of(make_cells("gd", orders=6) + mine)
    lines = summary.numbers
    assert lines["average_released"]["mine"] == lines["average_logits"]["mine"]
    assert lines["average_released"]["gd"] == lines["average"]["gd"]
    judged = [claim for claim in summary.claims if claim.left == "mine"]
    assert {claim.measure for claim in judged} == {"average", "variance", "order_variance"}
    assert all(claim.right == "gd" and claim.holds is not None for claim in judged)
    assert "Mine is higher in" in summary.headline


def test_a_number_is_added_in_one_place(summary_of, monkeypatch):
    monkeypatch.setitem(NUMBERS, "median_order", None)  # gone again after the test

    @number("median order", unit="score", better="high", shown=True)
    def median_order(row):
        """The median over orders of the average."""
        return float(np.median(row.scores.mean(axis=(0, 2))))

    summary = summary_of(make_cells("gd", orders=4))
    expected = float(np.median(final_scores("gd", range(1), range(4)).mean(axis=(0, 2))))
    assert json.loads(format_table(summary, "json"))["methods"]["gd"]["median_order"] == expected
    assert repr(expected) in format_table(summary, "csv")
    for text in (format_table(summary, "text"), format_table(summary, "latex"), render([summary])):
        assert "median order" in text and f"{100 * expected:.1f}" in text
    assert "median over orders of the average" in render([summary])


def test_disagreement_compares_orders_of_one_seed_only(summary_of):
    def labelled(order, seed, labels):
        text = base64.b64encode(np.array(labels, dtype=np.uint8).tobytes()).decode()
        return make_cell("gd", order, seed, predictions=[text] * TASKS)

    # Within seed 0 the orders differ on 1 of 4 samples, within seed 1 on 2 of 4.
    summary = summary_of(
        [
            labelled(0, 0, [0, 0, 0, 0]),
            labelled(1, 0, [0, 0, 0, 1]),
            labelled(0, 1, [1, 1, 1, 1]),
            labelled(1, 1, [1, 1, 0, 0]),
        ]
    )
    assert summary.numbers["disagreement"]["gd"] == pytest.approx((0.25 + 0.5) / 2)


def test_an_unfinished_grid_uses_the_largest_complete_block_and_says_so(summary_of):
    missing = {(2, 8), (2, 9), (1, 9)}
    places = [place for place in itertools.product(range(3), range(10)) if place not in missing]
    summary = summary_of([make_cell("gd", order, seed) for seed, order in places])
    entry = summary.methods["gd"]
    # 3 seeds x 8 orders = 24 beats 2 x 9 = 18 and 1 x 10.
    assert (entry["seeds"], entry["orders"], entry["cells"]) == (3, 8, 27)
    assert entry["average"] == pytest.approx(final_scores("gd", orders=range(8)).mean())
    assert any("27 cells" in note and "3 seeds x 8 orders" in note for note in summary.notes)


def test_the_complete_block_equals_brute_force_on_random_grids():
    generator = np.random.default_rng(0)
    for _ in range(30):
        present = generator.uniform(size=(4, 5)) < 0.6
        best = 0
        for bits in itertools.product([False, True], repeat=9):
            rows, columns = np.array(bits[:4]), np.array(bits[4:])
            if present[np.ix_(rows, columns)].all():
                best = max(best, int(rows.sum() * columns.sum()))
        seeds, orders = complete_block(zip(*np.nonzero(present), strict=True))
        assert len(seeds) * len(orders) == best
        assert present[np.ix_(seeds, orders)].all()
    everything = itertools.product(range(20), range(20))
    assert complete_block(everything) == (list(range(20)), list(range(20)))


def test_a_variance_over_one_order_or_seed_is_unknown_and_not_zero(summary_of):
    lines = summary_of(make_cells("gd")).numbers.loc["gd"]
    unseen = ["margin", "task_sd", "order_variance", "seed_variance", "variance", "worst_order"]
    assert lines[unseen].isna().all() and lines["average"] > 0


def test_what_a_cell_lacks_is_null(summary_of):
    cell = make_cell("joint", 0, 0)
    for key in ("nll", "predictions", "trace", "plasticity", "versions"):
        del cell[key]
    del cell["scores"]["logits"]
    cell["log_evidence"] = None
    cell["scores"]["particles"][1:-1] = [[None] * TASKS] * (TASKS - 1)  # it learns in one stage
    summary = summary_of([cell])
    entry = summary.methods["joint"]
    json.loads(format_table(summary, "json"), parse_constant=pytest.fail)  # no NaN, no infinity
    for key in ("nll", "disagreement", "ess_final", "average_logits", "forgetting", "log_evidence"):
        assert entry[key] is None
    assert entry["average"] == pytest.approx(np.mean(cell["scores"]["particles"][-1]))


# ---------------------------------------------------------------------- one run, and several


def test_several_runs_share_a_table_with_a_row_for_each_setting(write_cells):
    settings = {"lr": 0.001, "batch": 64, "ewc_strength": 7.0}
    tuned = make_cells("ewc", orders=2, preset="low", settings=settings)
    first = write_cells(make_cells("gd", "ewc", orders=2), "first")
    second = write_cells(make_cells("gd", orders=2, preset="low") + tuned, "second")
    (summary,) = summarize(first, second)
    assert list(summary.table.rows) == ["gd", "ewc (first)", "ewc (second)"]
    assert summary.table.label("ewc (second)") == "EWC (second)"
    assert summary.methods["gd"]["cells"] == 2  # the same two cells
    assert summary.methods["ewc (second)"]["settings"]["ewc_strength"] == 7.0
    note = "batch is 128 (Gradient descent, EWC (first)) and 64 (EWC (second))."
    assert note in summary.notes
    assert set(summary.table.preset.split(", ")) == {"table1", "low"}
    (joined,) = summarize(write_cells([make_cell("gd", 2, 0)], "third"), first)
    assert joined.methods["gd"]["orders"] == 3  # the rest of one grid


def test_labels_of_one_run_are_not_those_of_another(write_cells):
    for label in ("Mine", "Hers"):
        described = {"name": "mine", "label": label}
        directory = write_cells([make_cell("mine", 0, 0, described=described)], label)
        (summary,) = summarize(directory)
        assert summary.table.label("mine") == label
    (plain,) = summarize(write_cells([make_cell("mine", 0, 0)], "plain"))
    assert plain.table.label("mine") == "mine"
    (both,) = summarize(*(directory.parent / label for label in ("Mine", "Hers")))
    assert [both.table.label(name) for name in both.table.rows] == ["Mine (Mine)", "Hers (Hers)"]


def test_weighted_rows_of_several_runs_are_compared_within_their_run(write_cells):
    runs = []
    for run, lr in (("slow", 0.001), ("fast", 0.1)):
        cells = make_cells("gd", "wpf", orders=2, settings={"lr": lr})
        runs.append(write_cells(cells, run))
    (summary,) = summarize(*runs)
    pairs = {(claim.left, claim.right) for claim in summary.claims if "(" in claim.left}
    assert pairs == {("wpf (slow)", "gd (slow)"), ("wpf (fast)", "gd (fast)")}


@pytest.mark.parametrize("order", [(4, 3, 2, 1, 0), (1, 0)])
def test_runs_that_contradict_each_other_share_no_table(write_cells, order):
    count = len(order)
    scores = {"particles": [[0.5] * count] * (count + 1)}
    other = make_cell("wpf", 1, 0, order=list(order), task_names=None, scores=scores)
    runs = [write_cells([make_cell("gd", 1, 0)], "one"), write_cells([other], "two")]
    with pytest.raises(ReportError, match="Order 1 of"):
        summarize(*runs)


def test_a_directory_that_holds_no_run_is_one_sentence(write_cells, tmp_path):
    with pytest.raises(ReportError, match="nowhere is not a directory"):
        summarize(tmp_path / "nowhere")
    directory = write_cells([make_cell("gd", 0, 0)])
    (directory / "cells" / "0000.json").write_text("{")
    with pytest.raises(ReportError, match=r"0000\.json is damaged"):
        summarize(directory)
