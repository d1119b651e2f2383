"""The tasks of one cell side by side: the same files as one after another, also after a kill."""

import pytest
from lab.tests.experiments.tiny import make_run, result_of, tiny_cell, without_time
from lab.tests.faults.bench import everything, left

from orderless_lab.experiments import Grid, Store, run_grid
from orderless_lab.experiments.engine import Report
from orderless_lab.experiments.supervised import SupervisedRunner, TaskRunner
from orderless_lab.methods.presets import find_preset


def learn_part(cell, task, folder, **options):
    """What another process does; the order of the scenario's tasks stays."""
    (part,) = (each for each in cell.parts() if each.order == (task,))
    whole = make_run(cell, folder)
    return TaskRunner(part, whole.tasks, whole.store, **options).run()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind"),
    [("product", "domain"), ("product", "task"), ("product", "class")]
    + [("product+particles", "class")],
)
def test_a_cell_takes_over_tasks_and_is_the_same_to_the_bit(method, kind, tmp_path, monkeypatch):
    cell = tiny_cell(method, (2, 0, 1), scenario=kind, product_weights="evidence")
    expected = without_time(result_of(cell, tmp_path / "alone"))
    for task in range(3):
        assert learn_part(cell, task, tmp_path / "apart") is None
    monkeypatch.setattr(SupervisedRunner, "_learn", None)  # nothing is left to be learned
    assert without_time(result_of(cell, tmp_path / "apart")) == expected
    assert left(Store(tmp_path / "apart"), "checkpoints") == {}


def test_what_no_part_has_is_learned_by_the_cell_itself(tmp_path):
    cell = tiny_cell("product")
    expected = without_time(result_of(cell, tmp_path / "alone"))
    learn_part(cell, 1, tmp_path / "apart")
    assert without_time(result_of(cell, tmp_path / "apart")) == expected


def test_a_part_that_was_stopped_is_not_taken_for_a_finished_one(tmp_path):
    cell = tiny_cell("product")
    expected = without_time(result_of(cell, tmp_path / "alone"))

    def stop(steps, taken=[0]):  # noqa: B006
        taken[0] += steps
        if taken[0] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_part(cell, 1, tmp_path / "apart", checkpoint_every=0.0, tick=stop)
    assert left(Store(tmp_path / "apart"), "checkpoints")
    assert without_time(result_of(cell, tmp_path / "apart")) == expected
    # nor one of other settings
    learn_part(tiny_cell("product", product_lr=0.7), 1, tmp_path / "other")
    assert without_time(result_of(cell, tmp_path / "other")) == expected


def test_a_task_that_breaks_down_ends_the_cell_at_the_same_step(tmp_path):
    cell = tiny_cell("product", (0, 2, 1), product_lr=1e30)
    expected = without_time(result_of(cell, tmp_path / "alone"))
    assert expected["died_at"] is not None
    for task in range(3):
        learn_part(cell, task, tmp_path / "apart")
    assert without_time(result_of(cell, tmp_path / "apart")) == expected


def test_only_tasks_that_need_nothing_of_each_other_are_divided():
    assert [part.order for part in tiny_cell("product", (2, 0, 1)).parts()] == [(2,), (0,), (1,)]
    assert tiny_cell("gd").parts() == [] and tiny_cell("product").parts()[0].parts() == []


@pytest.mark.slow
def test_fewer_cells_than_processes_leave_the_same_files_also_after_a_stop(tmp_path, warm_workers):
    settings = find_preset("demo", "splitmnist").changed(hidden=4, iterations=5)
    grid = Grid("splitmnist", "class", "demo", ("product", "gd"), 1, 1, settings)
    run_grid(grid, Store(tmp_path / "one"))
    expected, told = everything(tmp_path / "one"), []
    run_grid(grid, Store(tmp_path / "many"), workers=3, report=Report(tick=told.append))
    assert everything(tmp_path / "many") == expected
    assert sum(told) <= 2 * 5 * 5  # no step is taken twice

    def stop(steps):
        if steps:
            raise KeyboardInterrupt

    store = Store(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        run_grid(grid, store, workers=3, checkpoint_every=0.0, report=Report(tick=stop))
    run_grid(grid, store, workers=1)
    assert everything(store.directory) == expected
