"""The log for TensorBoard holds what the record holds, read by TensorBoard itself."""

from __future__ import annotations

import sys

import pytest
from lab.tests.experiments.tiny import STEPS, make_run, tiny_cell, tiny_grid
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from orderless_lab.experiments import Store, run_grid
from orderless_lab.experiments.launch.local import compute
from orderless_lab.storage.typed import as_json


def logged(folder) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def expected(record) -> dict[str, list[tuple[int, float]]]:
    found = {
        name: list(zip(record["trace"]["step"], values, strict=True))
        for name, values in record["trace"].items()
        if name != "step"
    }
    lengths = [STEPS[task] for task in record["order"]]
    for name, rows in record["scores"].items():
        for task, title in enumerate(record["task_names"]):
            steps = [sum(lengths[:k]) for k in range(len(rows))]
            scores = [(step, row[task]) for step, row in zip(steps, rows, strict=True)]
            found[f"{name}/{title}"] = [pair for pair in scores if pair[1] is not None]
    return found


def assert_same(folder, record) -> None:
    ours, theirs = logged(folder), expected(record)
    assert set(ours) == set(theirs)
    for tag, points in theirs.items():
        assert [step for step, _ in ours[tag]] == [step for step, _ in points], tag
        # TensorBoard keeps float32
        values = [value for _, value in points]
        assert [value for _, value in ours[tag]] == pytest.approx(values, rel=1e-6), tag


@pytest.mark.parametrize("method", ["wpf", "joint", "rb"])
def test_the_log_is_the_record(method: str, tmp_path) -> None:
    cell = tiny_cell(method, order=(2, 0, 1))
    record = as_json(make_run(cell, tmp_path).run(tensorboard=True))
    assert {"loss", "ess", "largest_weight", "accuracy/t0"} <= set(expected(record))
    assert_same(tmp_path / "tensorboard" / cell.name, record)


def test_a_resumed_cell_has_every_step_once(tmp_path) -> None:
    cell, left = tiny_cell("wpf"), [7]

    def stop(steps: int) -> None:
        left[0] -= steps
        if left[0] < 0:
            raise KeyboardInterrupt

    folder = tmp_path / "tensorboard" / cell.name
    with pytest.raises(KeyboardInterrupt):
        make_run(cell, tmp_path, checkpoint_every=0.0, tick=stop).run(tensorboard=True)
    assert max(step for step, _ in logged(folder)["loss"]) == 7  # while it goes on
    record = as_json(make_run(cell, tmp_path).run(tensorboard=True))
    assert_same(folder, record)


def test_nothing_is_logged_unless_asked_for(tmp_path) -> None:
    run_grid(tiny_grid(), Store(tmp_path))
    assert not (tmp_path / "tensorboard").exists()


def test_every_cell_of_a_grid_has_a_log(tmp_path) -> None:
    store = Store(tmp_path)
    run_grid(tiny_grid(("gd", "rb")), store, tensorboard=True)
    records = store.finished()
    assert {path.name for path in (tmp_path / "tensorboard").iterdir()} == set(records)
    for name, record in records.items():
        assert_same(tmp_path / "tensorboard" / name, record)


def test_a_missing_package_is_a_sentence_before_anything_is_computed(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'orderless\[tensorboard\]'"):
        run_grid(tiny_grid(), Store(tmp_path / "run"), tensorboard=True)
    assert not (tmp_path / "run").exists()


def test_workers_are_told_to_log(tmp_path, monkeypatch) -> None:
    """What they are told, carried out here: to start a process takes seconds."""

    def here(self, cells, work, store, report):
        for cell in cells:
            yield cell, compute(cell, work, store, report.tick)[0]

    monkeypatch.setattr("orderless_lab.experiments.launch.local.Processes.launch", here)
    store = Store(tmp_path)
    run_grid(tiny_grid(), store, workers=2, tensorboard=True)
    assert len(store.finished()) == 2
    for name, record in store.finished().items():
        assert_same(tmp_path / "tensorboard" / name, record)
