"""Choosing a setting on held-out data."""

import dataclasses

import numpy as np
import pytest
from lab.tests.toys import tiny_grid

from orderless_lab.runs import Grid, Store, run_grid
from orderless_lab.runs.tuning import beyond, sweep


@pytest.mark.slow
def test_a_sweep_scores_held_out_training_data_and_never_test_data(tmp_path):
    """Test data of the tiny suite is NaN where it is not to be seen."""
    grid = tiny_grid(permutations=2, validation=0.25, epochs=6)
    results = dict(sweep(grid, "lr", ["1e-9", "0.05"], tmp_path))
    assert results["0.05"] > results["1e-9"] + 0.1
    store = Store(tmp_path / "lr=0.05")
    finals = [np.mean(r["scores"]["particles"][-1]) for r in store.finished().values()]
    assert len(finals) == 2 and results["0.05"] == pytest.approx(np.mean(finals))
    assert all(None not in r["nll"] for r in store.finished().values())


def test_a_sweep_chooses_by_the_scoring_it_is_told(tmp_path):
    grid = tiny_grid("wpf", permutations=2, validation=0.25, particles=5)
    found = {}
    for name in ("particles", "logits"):
        ((_, found[name]),) = sweep(grid, "lr", ["0.1"], tmp_path, combine=name)
        finals = [r["scores"][name][-1] for r in Store(tmp_path / "lr=0.1").finished().values()]
        assert found[name] == pytest.approx(np.mean(finals))
    assert found["particles"] != found["logits"]


@pytest.mark.parametrize(
    ("benchmark", "known"), [("procgen-bc", "particles, probs"), ("procgen-lifelong", "particles")]
)
def test_a_sweep_refuses_a_scoring_that_the_benchmark_does_not_record(benchmark, known, tmp_path):
    grid = Grid.plan(benchmark, "demo", first_seed=100)
    with pytest.raises(ValueError, match=f"combine must be one of {known}, got 'logits'"):
        sweep(grid, "adam_lr", ["1e-3"], tmp_path, combine="logits")
    assert not list(tmp_path.iterdir())


def test_a_sweep_reads_its_own_cells_only(tmp_path):
    grid = tiny_grid(validation=0.25)
    ((_, alone),) = sweep(grid, "lr", ["0.05"], tmp_path)
    wider = dataclasses.replace(grid, methods=("adam",), permutations=3)
    run_grid(wider, Store(tmp_path / "lr=0.05"))
    assert sweep(grid, "lr", ["0.05"], tmp_path) == [("0.05", alone)]


def test_a_value_with_a_slash_has_one_folder(tmp_path):
    sweep(tiny_grid(validation=0.25), "schedule", ["constant", "1/task"], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"schedule=constant", "schedule=1%2Ftask"}


@pytest.mark.parametrize(
    ("scores", "following"),
    [
        ({"1": 0.5, "10": 0.6}, "100"),
        ({"1": 0.5, "3": 0.6}, "9"),
        ({"1e-6": 0.5, "1": 0.6}, "10"),  # at most tenfold
        ({"1": 0.7, "10": 0.6}, "0.1"),
        ({"10": 0.7, "1": 0.5, "100": 0.6}, None),
        ({"1": 0.5, "10": 0.5}, None),  # no better at the end than inside
        ({"0": 0.9, "1": 0.5}, None),  # nothing comes before 0
        ({"0": 0.5, "1": 0.9}, None),  # 0 gives no ratio
        ({"1": 0.5}, None),
        ({"0.1": 0.5, "0.10": 0.5}, None),  # one number, written twice
        ({"relu": 0.5, "leaves": 0.6}, None),
    ],
)
def test_what_comes_after_the_end_of_a_grid(scores, following):
    assert beyond(list(scores.items())) == following
