"""Choosing a setting on held-out data, and saying beforehand what a run would take."""

import dataclasses

import numpy as np
import pytest
import torch
from lab.tests.experiments.tiny import tiny_grid, tiny_scenario

from orderless_lab.experiments import BENCHMARKS, Store, run_grid
from orderless_lab.experiments.grid import count_cells
from orderless_lab.experiments.plan import plan
from orderless_lab.experiments.tuning import beyond, sweep


@pytest.fixture
def held_out(monkeypatch):
    """The benchmark as the real ones are: with `validation`, test data is replaced. It is NaN."""

    def scenario(kind, settings, seed, root, device):
        whole = tiny_scenario(kind)
        for task in whole.tasks:
            task.x_test.fill_(torch.nan)
        return whole.validation(settings.validation)

    broken = dataclasses.replace(BENCHMARKS["tiny"], scenario=scenario)
    monkeypatch.setitem(BENCHMARKS, "tiny", broken)


@pytest.mark.slow
def test_a_sweep_scores_held_out_training_data_and_never_test_data(held_out, tmp_path):
    grid = tiny_grid(("gd",), 2, validation=0.25, epochs=6)
    results = dict(sweep(grid, "lr", ["1e-9", "0.05"], tmp_path))
    assert results["0.05"] > results["1e-9"] + 0.1
    store = Store(tmp_path / "lr=0.05")
    finals = [np.mean(r["scores"]["accuracy"][-1]) for r in store.finished().values()]
    assert len(finals) == 2 and results["0.05"] == pytest.approx(np.mean(finals))
    assert all(None not in r["nll"] for r in store.finished().values())


def test_a_sweep_chooses_by_the_scoring_it_is_told(held_out, tmp_path):
    grid = tiny_grid(("wpf",), 2, validation=0.25, particles=5)
    found = {}
    for name in ("accuracy", "logits"):
        ((_, found[name]),) = sweep(grid, "lr", ["0.1"], tmp_path, combine=name)
        finals = [r["scores"][name][-1] for r in Store(tmp_path / "lr=0.1").finished().values()]
        assert found[name] == pytest.approx(np.mean(finals))
    assert found["accuracy"] != found["logits"]
    with pytest.raises(ValueError, match="combine must be one of accuracy, logits, probs, got 'x'"):
        sweep(grid, "lr", ["0.01"], tmp_path, combine="x")


@pytest.mark.parametrize(
    ("benchmark", "known"), [("bc", "accuracy, probs"), ("lifelong", "accuracy")]
)
def test_a_sweep_refuses_a_scoring_that_the_benchmark_does_not_record(benchmark, known, tmp_path):
    (grid,) = plan(f"procgen-{benchmark}", preset="demo", changes=["first_seed=100"])
    with pytest.raises(ValueError, match=f"combine must be one of {known}, got 'logits'"):
        sweep(grid, "adam_lr", ["1e-3"], tmp_path, combine="logits")
    assert not list(tmp_path.iterdir())


def test_one_number_written_twice_has_no_end_to_go_beyond():
    assert beyond([("0.1", 0.5), ("0.10", 0.5)]) is None
    assert beyond([("0.1", 0.5), ("0.10", 0.5), ("1", 0.7)]) == "10"


def test_a_sweep_reads_its_own_cells_only(held_out, tmp_path):
    grid = tiny_grid(("gd",), 1, validation=0.25)
    ((_, alone),) = sweep(grid, "lr", ["0.05"], tmp_path)
    wider = dataclasses.replace(grid, methods=("adam",), permutations=3)
    run_grid(wider, Store(tmp_path / "lr=0.05"))
    assert sweep(grid, "lr", ["0.05"], tmp_path) == [("0.05", alone)]


def test_a_value_with_a_slash_has_one_folder(held_out, tmp_path):
    sweep(tiny_grid(("gd",), 1, validation=0.25), "schedule", ["constant", "1/task"], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"schedule=constant", "schedule=1%2Ftask"}


def test_a_sweep_without_held_out_data_or_with_a_bad_value_runs_nothing(tmp_path):
    with pytest.raises(ValueError, match="must not see what is reported: set validation=0.1"):
        sweep(tiny_grid(), "lr", ["0.1"], tmp_path / "a")
    with pytest.raises(ValueError, match="lr must be a positive number, got -1"):
        sweep(tiny_grid(validation=0.2), "lr", ["0.1", "-1"], tmp_path / "a")
    with pytest.raises(ValueError, match="at least one value of lr"):
        sweep(tiny_grid(validation=0.2), "lr", [], tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("method", ["gd", "ewc+wpf", "rb"])
def test_a_count_of_cells_and_bytes_trains_and_writes_nothing(method, tmp_path):
    store = Store(tmp_path / "run")
    assert "2 cells, 0 finished, 2 to compute" in count_cells(tiny_grid((method,)), store, None)
    assert not store.directory.exists()


def test_a_count_of_cells_knows_what_is_finished(tmp_path):
    store = Store(tmp_path)
    run_grid(tiny_grid(("gd",), 1), store)
    assert "3 cells, 1 finished, 2 to compute" in count_cells(tiny_grid(("gd",), 3), store, None)
