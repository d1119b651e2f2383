"""Summaries against numpy on the same cells, and what happens with grids that are not finished."""

import itertools
import json
import math

import numpy as np
import pytest
from lab.tests.report.synthetic_cells import LEVELS, make_cell

from orderless_lab.experiments.store import read_cell
from orderless_lab.report import ReportError, format_json, load_run, summarize
from orderless_lab.report.blocks import complete_block


def final_scores(method, seeds=range(3), orders=range(10), combine="accuracy"):
    return np.array(
        [[make_cell(method, o, s)["scores"][combine][-1] for o in orders] for s in seeds]
    )


def test_summary_equals_numpy_on_the_same_cells(full_summary):
    assert list(full_summary.methods) == list(LEVELS)
    for name, entry in full_summary.methods.items():
        scores = final_scores(name)
        assert entry.average == pytest.approx(scores.mean())
        assert entry.average_logits == pytest.approx(0.9 * scores.mean())
        assert entry.average_probs == pytest.approx(0.8 * scores.mean())
        assert entry.order_variance == pytest.approx(scores.var(axis=1).mean(), abs=1e-15)
        assert entry.seed_variance == pytest.approx(scores.var(axis=0).mean())
        assert entry.variance == pytest.approx(scores.var(axis=(0, 1)).mean())
        assert entry.worst_order == pytest.approx(scores.mean(axis=(0, 2)).min())
        assert entry.seed_averages == pytest.approx(scores.mean(axis=(1, 2)))
        low, high = entry.interval
        assert low <= entry.average <= high
        assert (entry.seeds, entry.orders, entry.cells) == (3, 10, 30)
    assert full_summary.methods["rb"].order_variance == 0.0


def test_the_ess_is_that_of_the_weights_that_answer(write_cells):
    # The exact filter traces its evidence weights, and answers with uniform ones.
    cells = [make_cell("rb", order, 0) | {"ess": 8.0} for order in range(2)]
    (summary,) = summarize(write_cells(cells))
    assert summary.methods["rb"].ess_final == 8.0


def test_transfer_trace_and_the_rest_are_means_over_runs(full_summary):
    entry = full_summary.methods["gd"]
    gains = []
    for order, seed in itertools.product(range(10), range(3)):
        cell = make_cell("gd", order, seed)
        matrix = cell["scores"]["accuracy"]
        places = list(enumerate(cell["order"], start=1))[:-1]
        gains.append(np.mean([matrix[-1][j] - matrix[place][j] for place, j in places]))
    assert entry.bwt == pytest.approx(np.mean(gains))
    assert entry.first_minus_last == pytest.approx(-np.mean(gains))
    assert entry.ess_final == pytest.approx(6.0)  # 5 + seed, seeds 0, 1, 2
    assert entry.log_evidence == pytest.approx(-101.0)
    assert entry.plasticity["dormant"] == pytest.approx([0.2] * 5)
    assert entry.duration == pytest.approx(45.0)
    assert full_summary.duration == pytest.approx(45.0 * len(LEVELS))
    # Settings all methods share stand above, those of one method with it.
    assert full_summary.settings == {"lr": 0.001, "batch": 128}
    assert entry.settings["penalty"] == "gd"


def test_disagreement_compares_orders_of_one_seed_only(write_cells):
    import base64

    def labelled(order, seed, labels):
        text = base64.b64encode(np.array(labels, dtype=np.uint8).tobytes()).decode()
        return make_cell("gd", order, seed, predictions=[text] * 5)

    # Within seed 0 the orders differ on 1 of 4 samples, within seed 1 on 2 of 4.
    directory = write_cells(
        [
            labelled(0, 0, [0, 0, 0, 0]),
            labelled(1, 0, [0, 0, 0, 1]),
            labelled(0, 1, [1, 1, 1, 1]),
            labelled(1, 1, [1, 1, 0, 0]),
        ]
    )
    (summary,) = summarize(directory)
    assert summary.methods["gd"].disagreement == pytest.approx((0.25 + 0.5) / 2)


def test_unfinished_grid_uses_the_largest_complete_block_and_says_so(write_cells):
    missing = {(2, 8), (2, 9), (1, 9)}
    cells = [
        make_cell("gd", order, seed)
        for order in range(10)
        for seed in range(3)
        if (seed, order) not in missing
    ]
    (summary,) = summarize(write_cells(cells))
    entry = summary.methods["gd"]
    # 3 seeds x 8 orders = 24 beats 2 x 9 = 18 and 1 x 10.
    assert (entry.seeds, entry.orders, entry.cells) == (3, 8, 27)
    assert entry.average == pytest.approx(final_scores("gd", orders=range(8)).mean())
    assert any("3 seeds x 8 orders" in note and "leaves out 3" in note for note in summary.notes)


def test_complete_block_equals_brute_force_on_random_grids():
    generator = np.random.default_rng(0)
    for _ in range(30):
        present = generator.uniform(size=(4, 5)) < 0.6
        places = [(s, o) for s in range(4) for o in range(5) if present[s, o]]
        best = 0
        for bits in itertools.product([False, True], repeat=9):
            rows, columns = np.array(bits[:4]), np.array(bits[4:])
            if present[np.ix_(rows, columns)].all():
                best = max(best, int(rows.sum() * columns.sum()))
        seeds, orders = complete_block(places)
        assert len(seeds) * len(orders) == best
        assert present[np.ix_(seeds, orders)].all()


def test_complete_block_of_twenty_by_twenty_full_cells_is_everything():
    places = itertools.product(range(20), range(20))
    assert complete_block(places) == (list(range(20)), list(range(20)))
    assert complete_block([]) == ([], [])


def test_methods_come_in_table_order_and_unknown_ones_after(write_cells):
    names = ["zebra", "rb", "gd", "lwf+wpf", "wpf", "anchor", "er"]
    (summary,) = summarize(write_cells([make_cell(name, 0, 0) for name in names]))
    assert list(summary.methods) == ["wpf", "gd", "lwf+wpf", "er", "rb", "anchor", "zebra"]


def test_benchmarks_scenarios_and_presets_are_kept_apart(write_cells):
    cells = [
        make_cell("gd", 0, 0),
        make_cell("gd", 0, 0, preset="table1-low"),
        make_cell("gd", 0, 0, scenario="class"),
    ]
    summaries = summarize(write_cells(cells))
    assert [(s.scenario, s.preset) for s in summaries] == [
        ("class", "table1"),
        ("domain", "table1"),
        ("domain", "table1-low"),
    ]


def test_returns_have_no_normalized_variance_but_raw_ones(write_cells):
    cells = [make_cell("gd", order, 0, score_kind="return") for order in range(4)]
    (summary,) = summarize(write_cells(cells))
    entry = summary.methods["gd"]
    assert entry.normalized_variance is None and entry.normalized_order_variance is None
    assert entry.order_variance > 0
    assert summary.claims == []


def test_a_learner_without_intermediate_rows_has_no_forgetting(write_cells):
    cell = make_cell("joint", 0, 0)
    cell["scores"]["accuracy"][1:-1] = [[None] * 5] * 4
    (summary,) = summarize(write_cells([cell]))
    entry = summary.methods["joint"]
    assert entry.forgetting is None and entry.bwt is None
    assert entry.average == pytest.approx(np.mean(cell["scores"]["accuracy"][-1]))


def test_json_never_holds_nan_or_infinity(write_cells):
    # A task that is never right makes the normalized variance 0 / 0.
    cells = [make_cell("gd", order, 0, log_evidence=-math.inf) for order in range(2)]
    for cell in cells:
        cell["scores"]["accuracy"][-1] = [0.0, 0.5, 0.5, 0.5, 0.5]
    (summary,) = summarize(write_cells(cells))
    json.loads(format_json([summary]), parse_constant=pytest.fail)
    assert summary.methods["gd"].normalized_variance is None
    assert summary.methods["gd"].log_evidence is None


def test_missing_optional_parts_become_null(write_cells):
    cell = make_cell("gd", 0, 0)
    for key in ("nll", "ece", "predictions", "trace", "log_evidence", "plasticity", "versions"):
        del cell[key]
    del cell["scores"]["logits"]
    (summary,) = summarize(write_cells([cell]))
    entry = summary.methods["gd"]
    for key in ("nll", "ece", "disagreement", "ess_final", "log_evidence", "average_logits"):
        assert getattr(entry, key) is None


def test_the_reader_of_the_store_may_be_named_and_others_may_take_its_place(write_cells):
    directory = write_cells([make_cell("gd", 0, 0)])
    assert summarize(directory, read=read_cell) == summarize(directory)
    bare = make_cell("wpf", 0, 0)
    (cell,) = load_run(directory, read=lambda path: bare).cells
    assert (cell.method, cell.scores) == ("wpf", bare["scores"])


def test_summary_does_not_depend_on_file_names(write_cells, tmp_path):
    cells = [make_cell("gd", order, seed) for order in range(3) for seed in range(2)]
    forward = write_cells(cells, tmp_path / "forward")
    backward = write_cells(cells[::-1], tmp_path / "backward")
    assert summarize(forward) == summarize(backward)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: folder.joinpath("0000.json").write_text("{"), "0000.json is damaged"),
        (lambda folder: folder.joinpath("0000.json").write_text("[1]"), "0000.json is damaged"),
        (lambda folder: folder.joinpath("0000.json").unlink(), "holds no finished cells"),
    ],
)
def test_bad_directories_give_one_sentence(write_cells, spoil, message):
    directory = write_cells([make_cell("gd", 0, 0)])
    spoil(directory / "cells")
    with pytest.raises(ReportError, match=message):
        summarize(directory)


def test_a_directory_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ReportError, match="nowhere is not a directory"):
        summarize(tmp_path / "nowhere")


def test_cells_that_contradict_each_other_are_refused(write_cells, tmp_path):
    twice = write_cells([make_cell("gd", 0, 0), make_cell("gd", 0, 0)], tmp_path / "twice")
    with pytest.raises(ReportError, match="Two cells in .* hold gd, order 0, seed 0"):
        summarize(twice)
    other_order = make_cell("wpf", 0, 0, order=[4, 3, 2, 1, 0])
    mixed = write_cells([make_cell("gd", 0, 0), other_order], tmp_path / "mixed")
    with pytest.raises(ReportError, match="Order 0 is"):
        summarize(mixed)
    ragged = make_cell("gd", 0, 0)
    ragged["scores"]["accuracy"] = ragged["scores"]["accuracy"][1:]
    with pytest.raises(ReportError, match=r"shape \[6, 5\]"):
        summarize(write_cells([ragged], tmp_path / "ragged"))
    fewer = make_cell(
        "gd", 1, 0, order=[1, 0], task_names=None, scores={"accuracy": [[0.5] * 2] * 3}
    )
    with pytest.raises(ReportError, match="different numbers of tasks"):
        summarize(write_cells([make_cell("gd", 0, 0), fewer], tmp_path / "fewer"))
