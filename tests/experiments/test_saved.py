"""A run directory of the first version goes on: finished cells count, a checkpoint is resumed."""

import shutil
from pathlib import Path

import pytest
from tests.experiments.saved.make import SMALL

from orderless.experiments import Grid, Store, StoreError, run_grid
from orderless.experiments.engine import Report
from orderless.methods import METHODS
from orderless.methods.presets import find_preset
from orderless.storage import load

THEN = {"lr": 0.003, "batch_size": 8, "perturbation": 0.01, "ewc_step": "gradient"}
SETTINGS = find_preset("demo", "splitmnist").changed(**SMALL, **THEN, ewc_tuned=2.0)
FINISHED = ("gd", "ewc-tuned+wpf", "rb")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shutil.copytree(Path(__file__).parent / "saved" / "run", tmp_path / "run")
    return Store(tmp_path / "run")


def grid(methods: tuple[str, ...], **changes: float | str) -> Grid:
    return Grid("splitmnist", "domain", "demo", methods, 1, 1, SETTINGS.changed(**changes))


def test_finished_cells_are_not_run_again(store: Store) -> None:
    assert run_grid(grid(FINISHED), store) == 0


def test_their_settings_are_compared_by_the_same_keys(store: Store) -> None:
    with pytest.raises(StoreError, match="ewc_tuned=2.0, not 3.0: choose another --out"):
        run_grid(grid(("ewc-tuned+wpf",), ewc_tuned=3.0), store)
    assert run_grid(grid(("gd", "rb"), si_strength=3.0, rb_block=64), store) == 0  # not read


def test_penalties_stood_in_the_gradient_then(store: Store) -> None:
    with pytest.raises(StoreError, match="ewc_step=gradient, not auto: choose another --out"):
        run_grid(grid(("ewc-tuned+wpf",), ewc_step="auto"), store)
    # with Adam they still do
    adam = SETTINGS.changed(optimizer="adam", ewc_step="auto")
    recorded = {k: v for k, v in adam.flat(METHODS["ewc-tuned"]).items() if k != "ewc_step"}
    assert adam.differs(recorded, METHODS["ewc-tuned"]) is None
    closed = adam.changed(ewc_step="closed")
    assert closed.differs(recorded, METHODS["ewc-tuned"]) == "ewc_step=gradient, not closed"


def test_a_setting_that_did_not_exist_then_had_its_default(store: Store) -> None:
    with pytest.raises(StoreError, match="schedule=constant, not 1/task: choose another --out"):
        run_grid(grid(("gd",), schedule="1/task"), store)


@pytest.mark.slow
def test_a_cell_goes_on_from_its_checkpoint_to_the_same_result(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (saved, *_) = (store.directory / "checkpoints").glob("*.st")
    known = load(saved)["versions"]  # one of another torch is not gone on from
    monkeypatch.setattr("orderless.experiments.runner.versions", lambda: known)
    steps: list[int] = []
    assert run_grid(grid(("wpf",)), store, report=Report(tick=steps.append)) == 1
    assert steps[0] == 30 and sum(steps) == 60
    whole = Store(tmp_path / "whole")
    run_grid(grid(("wpf",)), whole)
    (name,) = whole.finished()
    theirs, ours = whole.finished()[name], store.finished()[name]
    for key in ("scores", "log_evidence", "ess", "trace"):
        # the same arithmetic up to the last digits, which another way to sum may change
        assert _flat(ours[key]) == pytest.approx(_flat(theirs[key]), rel=1e-4, abs=1e-4)


def _flat(value: object) -> list[float]:
    if isinstance(value, dict):
        return [x for each in value.values() for x in _flat(each)]
    if isinstance(value, list):
        return [x for each in value for x in _flat(each)]
    assert isinstance(value, int | float)
    return [value]
