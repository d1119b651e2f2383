"""The grid: only what is missing, nothing mixed, nothing lost."""

import dataclasses
import errno
import fcntl
import json
import os
import shlex
import warnings
from concurrent.futures import Future

import pytest
import torch
from lab.tests.experiments.tiny import SETTINGS, tiny_grid, tiny_scenario, without_time

from orderless.ensemble.precision import one_thread
from orderless_lab.experiments import Grid, Store, StoreError, run_grid
from orderless_lab.experiments.benchmarks import BENCHMARKS, Scenarios
from orderless_lab.experiments.engine import Report
from orderless_lab.experiments.grid import GridWork
from orderless_lab.experiments.launch.local import automatic_workers, compute, deterministic
from orderless_lab.experiments.store import read_cell
from orderless_lab.methods.policy_settings import PolicySettings
from orderless_lab.methods.presets import POLICY_PRESETS, PRESETS
from orderless_lab.storage import directory as storage

BOTH = ("gd", "wpf")


def files(store):
    return {path.name: path.read_bytes() for path in (store.directory / "cells").glob("*")}


def records(store):
    return {name: without_time(record) for name, record in store.finished().items()}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


# ------------------------------------------------------------------ what is computed


@pytest.mark.slow
def test_a_grid_is_every_method_in_every_order_from_every_seed(store):
    grid = Grid("tiny", "domain", "demo", BOTH, 3, 2, SETTINGS)
    assert run_grid(grid, store) == 12
    made = [(r["method"], r["order_index"], r["seed"]) for r in store.finished().values()]
    assert sorted(made) == [(m, o, s) for m in BOTH for o in range(3) for s in range(2)]
    orders = {r["order_index"]: r["order"] for r in store.finished().values()}
    assert orders[0] == [0, 1, 2] and len({tuple(order) for order in orders.values()}) == 3
    assert list((store.directory / "checkpoints").iterdir()) == []


@pytest.mark.slow
def test_finished_cells_are_compared_without_loading_the_tasks_of_every_seed(store, monkeypatch):
    loaded = []

    def scenario(kind, settings, seed, root, device):
        loaded.append(seed)
        return tiny_scenario(kind)

    counted = dataclasses.replace(BENCHMARKS["tiny"], scenario=scenario)
    monkeypatch.setitem(BENCHMARKS, "tiny", counted)
    grid = Grid("tiny", "domain", "demo", BOTH, 1, 3, SETTINGS.changed(assign="random"))
    run_grid(grid, store)
    loaded.clear()
    assert run_grid(grid, store) == 0 and loaded == [0]


def test_a_second_run_computes_nothing(store):
    run_grid(tiny_grid(BOTH), store)
    before = files(store)
    begun = []
    report = Report(begin=lambda *counts: begun.append(counts), start=lambda cell: begun.append(1))
    assert run_grid(tiny_grid(BOTH), store, report=report) == 0
    assert begun == [(4, 4)] and files(store) == before


def test_more_orders_and_methods_join_those_that_are_there(store):
    run_grid(tiny_grid(("gd",), 1), store)
    before = files(store)
    assert run_grid(tiny_grid(BOTH, 2), store) == 3
    assert before.items() <= files(store).items()


@pytest.mark.slow
def test_the_grid_around_a_cell_changes_nothing(tmp_path):
    """Neither other methods nor other orders before it."""
    alone, among = Store(tmp_path / "a"), Store(tmp_path / "b")
    run_grid(tiny_grid(("wpf",), 1), alone)
    run_grid(tiny_grid(("gd", "er", "wpf"), 3), among)
    ours = records(among)
    for name, record in records(alone).items():
        assert ours[name] == {**record, "command": ours[name]["command"]}


def test_what_happens_is_reported(store):
    said = []
    report = Report(
        begin=lambda finished, total: said.append((finished, total)),
        start=lambda cell: said.append(cell.method),
        tick=lambda steps: said.append(steps),
        done=lambda cell, record: said.append(record.method),
    )
    run_grid(tiny_grid(("gd",), 1), store, report=report)
    assert said == [(0, 1), "gd", *[1] * 13, "gd"]


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"benchmark": "x"}, "unknown benchmark 'x'"),
        ({"scenario": "x"}, "scenario must be domain, task or class, got 'x'"),
        ({"methods": ("gd", "x")}, "unknown method 'x'"),
        ({"methods": ()}, "at least one method"),
        ({"methods": ("si-tuned+wpf",)}, "si-tuned needs a strength"),
        ({"permutations": 0}, "permutations must be at least 1, got 0"),
        ({"seeds": -1}, "seeds must be at least 1, got -1"),
    ],
)
def test_a_bad_grid_is_refused_before_anything_is_loaded(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(tiny_grid(), **change)


def test_more_orders_than_there_are_leave_no_directory(store):
    with pytest.raises(ValueError, match="at most 6.*3 tasks, got 7"):
        run_grid(tiny_grid(permutations=7), store)
    assert not store.directory.exists()


def test_other_settings_in_the_same_directory_are_refused(store):
    run_grid(tiny_grid(("gd",), 1), store)
    before = files(store)
    for methods in (("gd",), ("wpf",)):  # a table with two learning rates would mislead
        with pytest.raises(StoreError, match="with lr=0.05, not 0.1: choose another --out"):
            run_grid(tiny_grid(methods, 1, lr=0.1), store)
    with pytest.raises(StoreError, match="order_seed=0, not 3"):
        run_grid(tiny_grid(("gd",), 2, order_seed=3), store)
    assert files(store) == before


def test_settings_that_a_finished_cell_does_not_read_may_differ(store):
    run_grid(tiny_grid(("gd", "ewc"), 1), store)
    changed = {"ewc_tuned": 2.0, "si_strength": 3.0, "test_batch": 5}
    assert run_grid(tiny_grid(("gd", "ewc", "ewc-tuned", "si"), 1, **changed), store) == 2
    with pytest.raises(StoreError, match="ewc_tuned=2.0, not 4.0"):
        run_grid(tiny_grid(("ewc-tuned",), 1, ewc_tuned=4.0), store)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scenario": "task"}, "scenario=task, not domain"),
        ({"methods": ("wpf",)}, "method=wpf, not gd"),
        ({"seeds": 2}, "seed=1, not 0"),
        ({"preset": "paper"}, "preset=paper, not demo"),
    ],
)
def test_a_cell_of_another_grid_put_in_place_is_not_trusted(change, words, store, tmp_path):
    other = Store(tmp_path / "other")
    run_grid(dataclasses.replace(tiny_grid(("gd",), 1), **change), other)
    run_grid(tiny_grid(("gd",), 1), store)
    (ours,) = (store.directory / "cells").iterdir()
    stranger = sorted((other.directory / "cells").iterdir())[-1]
    ours.write_bytes(stranger.read_bytes())
    with pytest.raises(StoreError, match=f"{ours.stem} with {words}: choose another --out"):
        run_grid(tiny_grid(("gd",), 1), store)


def test_a_directory_of_an_audit_is_refused(store):
    store.prepare()
    store.write_cell("mine-order0-seed0", {"learner": "mine", "order": [0, 1], "maker": {}})
    with pytest.raises(StoreError, match="holds an audit, not an experiment"):
        run_grid(tiny_grid(), store)


@pytest.mark.parametrize("what", ["seeds", "permutations"])
def test_more_cells_than_anybody_can_compute_are_refused_at_once(what):
    with pytest.raises(ValueError, match="at most 100,000 cells at once, got 1,000,000,000"):
        dataclasses.replace(tiny_grid(("gd",), 1), **{what: 10**30})


def test_particles_that_no_memory_holds_are_refused_at_once(store, monkeypatch):
    monkeypatch.setattr("orderless_lab.experiments.grid.machine_memory", lambda: 10**6)
    with pytest.raises(ValueError, match="1000 particles need .* use fewer --particles"):
        run_grid(tiny_grid(("wpf",), 1, particles=1000), store)
    assert not store.directory.exists()
    assert run_grid(tiny_grid(("gd",), 1, particles=1000), store) == 1  # one network fits


def test_two_runs_cannot_share_a_directory(store):
    store.prepare()
    with open(store.directory / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another run is writing to"):
            run_grid(tiny_grid(), store)
    assert run_grid(tiny_grid(), store) == 2


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x"])
def test_a_place_that_cannot_be_written_is_refused(place):
    with pytest.raises(StoreError, match=f"cannot write to {place}: "):
        run_grid(tiny_grid(), Store(place))


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_cell_is_set_aside_and_computed_again(damage, store):
    run_grid(tiny_grid(BOTH, 1), store)
    before = records(store)
    path = sorted((store.directory / "cells").glob("*.json"))[0]
    data = bytearray(path.read_bytes())
    data[data.index(b"0.05")] ^= 1
    path.write_bytes({"flip": data, "truncate": data[:-9], "empty": b""}[damage])
    with pytest.raises(ValueError, match="is damaged .*: delete it and run again"):
        read_cell(path)
    with pytest.warns(UserWarning, match="was damaged: it is now .*damaged, and computed again"):
        assert run_grid(tiny_grid(BOTH, 1), store) == 1
    assert records(store) == before
    assert path.with_suffix(".damaged").exists()


def test_a_damaged_snapshot_is_set_aside_and_its_cell_computed_again(store):
    run_grid(tiny_grid(BOTH, 1), store)
    (path,) = (store.directory / "snapshots").iterdir()
    before, whole = records(store), path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.warns(UserWarning, match="was damaged: it is now .*damaged, and computed again"):
        assert run_grid(tiny_grid(BOTH, 1), store) == 1
    assert records(store) == before and path.read_bytes() == whole


def stopped(store, monkeypatch, after=7):
    """A run that was stopped in the middle of its only cell, with two checkpoints."""

    def tick(steps, left=[after]):  # noqa: B006
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(tiny_grid(("wpf",), 1), store, checkpoint_every=0, report=Report(tick=tick))
    paths = sorted((store.directory / "checkpoints").glob("*.st"), key=lambda p: p.stat().st_mtime)
    assert len(paths) == 2
    return paths


def resumed_at(store):
    ticks = []
    run_grid(tiny_grid(("wpf",), 1), store, report=Report(tick=ticks.append))
    return ticks[0]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    whole = Store(tmp_path_factory.mktemp("whole"))
    run_grid(tiny_grid(("wpf",), 1), whole)
    return records(whole)


@pytest.mark.parametrize("place", [0, 200, -1])  # the length of the header, the header, a tensor
def test_a_damaged_checkpoint_is_passed_over(place, store, undisturbed, monkeypatch):
    _, newer = stopped(store, monkeypatch)
    data = bytearray(newer.read_bytes())
    data[place] ^= 4
    newer.write_bytes(data)
    with pytest.warns(UserWarning, match=f"{newer.name} was damaged: it is now .*damaged, and"):
        assert resumed_at(store) == 6
    assert records(store) == undisturbed


def test_with_no_whole_checkpoint_a_cell_begins_again(store, monkeypatch):
    for path in stopped(store, monkeypatch):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(UserWarning, match="was damaged"):
        assert resumed_at(store) == 1


def test_the_newest_checkpoint_counts(store, monkeypatch):
    stopped(store, monkeypatch)
    assert resumed_at(store) == 7


def test_a_clock_that_was_set_back_does_not_hide_the_newest_checkpoint(store, monkeypatch):
    older, newer = stopped(store, monkeypatch)
    os.utime(older, (2e9, 2e9))  # as if written before the clock was set back
    assert resumed_at(store) == 7


def test_checkpoints_take_turns_after_a_clock_was_set_back(store, monkeypatch):
    older, newer = stopped(store, monkeypatch)
    os.utime(older, (2e9, 2e9))
    left = [4]

    def tick(steps):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(tiny_grid(("wpf",), 1), store, checkpoint_every=0, report=Report(tick=tick))
    assert resumed_at(store) == 10  # 7, and three steps more


def test_a_checkpoint_of_other_settings_is_passed_over_however_far_it_came(store, monkeypatch):
    stopped(store, monkeypatch, after=9)
    begun = []
    report = Report(tick=begun.append)
    assert run_grid(tiny_grid(("wpf",), 1, lr=0.1), store, report=report) == 1
    assert begun[0] == 1


def test_what_a_killed_run_left_is_tidied_up(store):
    run_grid(tiny_grid(("gd",), 1), store)
    (name,) = store.finished()
    store.save_checkpoint(name, {"left": 1})  # killed after the cell, before the checkpoint went
    part = store.directory / "checkpoints" / ".x.st.123.part"
    part.write_bytes(b"half")
    assert run_grid(tiny_grid(("gd",), 1), store) == 0
    assert list((store.directory / "checkpoints").iterdir()) == []


@pytest.mark.slow
def test_a_full_disk_loses_nothing(store, monkeypatch):
    write, room = storage.write_atomically, [2]

    def limited(path, data):
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= 1
        write(path, data)

    monkeypatch.setattr(storage, "write_atomically", limited)
    with pytest.raises(StoreError, match="No space left on device; finished cells are safe"):
        run_grid(tiny_grid(("gd", "er", "si")), store)
    done = files(store)
    assert len(done) == 2
    monkeypatch.undo()
    assert run_grid(tiny_grid(("gd", "er", "si")), store) == 4
    assert done.items() <= files(store).items()


def test_cell_files_are_checked_json(store):
    run_grid(tiny_grid(("gd",), 1), store)
    (path,) = (store.directory / "cells").glob("*.json")
    wrapper = json.loads(path.read_text())
    assert set(wrapper) == {"format", "checksum", "cell"}
    assert read_cell(path) == wrapper["cell"]


# ------------------------------------------------------------------ processes


def test_a_process_for_every_core_that_has_work_and_memory(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    cpu = torch.device("cpu")
    assert automatic_workers(100, cpu, 1) == 8
    assert automatic_workers(3, cpu, 1) == 3
    assert automatic_workers(0, cpu, 1) == 1
    assert automatic_workers(100, cpu, 1 << 60) == 1
    assert automatic_workers(100, torch.device("cuda"), 1) == 1


def test_processes_begin_with_the_cells_that_take_longest(store, monkeypatch):
    begun = []

    class Pool:
        def __init__(self, *arguments, **options):
            pass

        def submit(self, function, cell, *arguments):
            begun.append((cell.method, cell.order_index))
            done = Future()
            done.set_result(({}, []))
            return done

        def shutdown(self, **options):
            pass

    monkeypatch.setattr("orderless_lab.experiments.launch.local.ProcessPoolExecutor", Pool)
    run_grid(tiny_grid(("gd", "rb", "wpf"), 2), store, workers=2)
    others = [(name, order) for order in (0, 1) for name in ("gd", "wpf")]
    assert begun == [("rb", 0), ("rb", 1), *others]


def test_a_run_uses_one_thread_and_gives_the_others_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_deterministic_kernels_while_cells_are_computed_and_no_longer(store):
    seen = []

    def look(steps):
        seen.append((torch.get_deterministic_debug_mode(), torch.backends.cudnn.deterministic))

    run_grid(tiny_grid(("gd",), 1), store, deterministic=True, report=Report(tick=look))
    grid = tiny_grid(("wpf",), 1)  # and as a worker process computes it
    scenarios, cell = Scenarios("tiny", "domain", SETTINGS, None, "cpu"), next(grid.cells(3))
    compute(cell, GridWork(grid, scenarios, scenarios, deterministic=True), store, look)
    assert set(seen) == {(1, True)}  # 1: warn where there is no such kernel
    look(0)
    assert seen[-1] == (0, False)


def test_deterministic_kernels_leave_the_precision_that_was_asked_for():
    convolutions = torch.backends.cudnn.conv
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"  # as torch recommends by now
    try:
        with deterministic(True):
            assert convolutions.fp32_precision == "ieee"
        assert convolutions.fp32_precision == "ieee" and not torch.backends.cudnn.deterministic
    finally:
        convolutions.fp32_precision = before


def test_reading_a_directory_changes_nothing(store):
    run_grid(tiny_grid(("gd",), 1), store)
    (path,) = (store.directory / "cells").glob("*.json")
    path.write_text("{")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.finished() == {}
    assert path.exists()


def test_the_recorded_command_makes_the_same_grid_again() -> None:
    settings = PRESETS["demo"].changed(lr=0.5, ewc_tuned=10.0, chunk_size=2)
    grid = Grid("splitmnist", "class", "demo", ("gd", "ewc-tuned+wpf"), 2, 3, settings)
    words = shlex.split(grid.command())
    assert words[:3] == ["orderless", "run", "splitmnist"]
    options = list(zip(words[3::2], words[4::2], strict=True))
    texts = [value for name, value in options if name == "--set"]
    rest = {name: value for name, value in options if name != "--set"}
    again = Grid(
        words[2],
        rest["--scenario"],
        rest["--preset"],
        tuple(rest["--methods"].split(",")),
        int(rest["--permutations"]),
        int(rest["--seeds"]),
        PRESETS[rest["--preset"]].with_text(texts),
    )
    assert again == grid


def test_a_preset_of_ones_own_is_allowed_for_games_too() -> None:
    settings = POLICY_PRESETS["demo"]
    grid = Grid("procgen-bc", "starpilot", "mine", ("bc",), 1, 1, settings)
    assert "--preset mine --game starpilot" in grid.command()
    assert PolicySettings().with_text(shlex.split(grid.command())[14::2]) == settings
