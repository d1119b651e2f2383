"""The grid: only what is missing, nothing mixed, nothing lost."""

import dataclasses
import json
import os
import shlex
import warnings

import pytest
import torch
from lab.tests.toys import SETTINGS, TINY, compute, stop_after, tiny_grid, without_time

from orderless_lab.runs import Grid, Store, StoreError, load_run, run_grid
from orderless_lab.runs.grid import count_cells, run_grids
from orderless_lab.runs.launch import Listener
from orderless_lab.runs.store import read_cell
from orderless_lab.suites import SUITES, find_suite

BOTH = ("gd", "wpf")


def files(store):
    return {path.name: path.read_bytes() for path in (store.directory / "cells").glob("*")}


def records(store):
    return {name: without_time(record) for name, record in store.finished().items()}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


# ---------------------------------------------------------------------- what is computed


@pytest.mark.slow
def test_a_grid_is_every_method_in_every_order_from_every_seed(store):
    grid = Grid("tiny", "domain", "demo", BOTH, 3, 2, SETTINGS)
    assert run_grid(grid, store) == 12
    made = [(r["method"], r["order_index"], r["seed"]) for r in store.finished().values()]
    assert sorted(made) == [(m, o, s) for m in BOTH for o in range(3) for s in range(2)]
    orders = {r["order_index"]: r["order"] for r in store.finished().values()}
    assert orders[0] == [0, 1, 2] and len({tuple(order) for order in orders.values()}) == 3
    assert list((store.directory / "checkpoints").iterdir()) == []


def test_a_second_run_computes_nothing_and_loads_no_tasks(store):
    compute(store, *BOTH, permutations=2)
    before = files(store)
    TINY.loaded.clear()
    TINY._loaded = None
    begun = []
    listener = Listener(begin=lambda *counts: begun.append(counts), start=begun.append)
    assert compute(store, *BOTH, permutations=2, listener=listener) == 0
    assert begun == [(4, 4)] and files(store) == before and TINY.loaded == []


def test_more_orders_and_methods_join_those_that_are_there(store):
    compute(store)
    before = files(store)
    assert compute(store, *BOTH, permutations=2) == 3
    assert before.items() <= files(store).items()


@pytest.mark.slow
def test_the_grid_around_a_cell_changes_nothing(tmp_path):
    """Neither other methods nor other orders before it."""
    alone = Store(tmp_path / "a")
    among = Store(tmp_path / "b")
    compute(alone, "wpf")
    compute(among, "gd", "er", "wpf", permutations=3)
    ours = records(among)
    for name, record in records(alone).items():
        assert ours[name] == {**record, "command": ours[name]["command"]}


def test_what_happens_is_told(store):
    said = []
    listener = Listener(
        begin=lambda finished, total: said.append((finished, total)),
        start=lambda cell: said.append(cell.method),
        tick=lambda steps: said.append(steps),
        done=lambda cell, record: said.append(record.method),
    )
    compute(store, listener=listener)
    assert said == [(0, 1), "gd", *[1] * 13, "gd"]


def test_parts_of_a_grid_are_disjoint_and_together_the_whole(tmp_path):
    parts = Store(tmp_path / "parts")
    counts = [run_grid(tiny_grid(*BOTH, permutations=3), parts, shard=(k, 4)) for k in (1, 2, 3, 4)]
    assert counts == [2, 2, 1, 1]
    assert run_grid(tiny_grid(*BOTH, permutations=3), parts) == 0


def test_several_grids_are_computed_in_one_go(tmp_path):
    pairs = [
        (tiny_grid(permutations=2, lr=rate), Store(tmp_path / str(rate))) for rate in (0.1, 0.2)
    ]
    totals = []
    assert run_grids(pairs, listener=Listener(begin=lambda *c: totals.append(c))) == 4
    assert totals == [(0, 4)]
    for grid, store in pairs:
        rates = {record["settings"]["lr"] for record in store.finished().values()}
        assert rates == {grid.settings.lr}


def test_a_count_of_cells_and_bytes_loads_trains_and_writes_nothing(store):
    compute(store)
    before = files(store)
    TINY.loaded.clear()
    said = count_cells(tiny_grid("gd", "ewc+wpf", "exact", permutations=3), store)
    assert "9 cells, 1 finished, 8 to compute" in said and "MiB" in said
    assert files(store) == before and TINY.loaded == []


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"variant": "x"}, "scenario must be one of domain, task, class, got 'x'"),
        ({"permutations": 0}, "permutations must be at least 1, got 0"),
        ({"methods": ("ppo",)}, "not a method for this benchmark: 'ppo'"),
        ({"seeds": -1}, "seeds must be at least 1, got -1"),
        ({"seeds": 10**30}, "at most 100,000 cells at once"),
    ],
)
def test_a_bad_grid_is_refused_before_anything_is_loaded(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(tiny_grid(), **change)


def test_other_settings_in_the_same_directory_are_refused(store):
    compute(store)
    before = files(store)
    for method in BOTH:  # a table with two learning rates would mislead
        with pytest.raises(StoreError, match=r"with lr=0.05, not 0.1: choose another --out"):
            compute(store, method, lr=0.1)
    with pytest.raises(StoreError, match="order_seed=0, not 3"):
        compute(store, permutations=2, order_seed=3)
    assert files(store) == before


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("gd", {"particles": 7, "min_ess": 2, "weighting": "linearized"}),  # one network
        ("gd", {"ewc_strength": 3.0, "exact_features": 8, "test_batch": 5}),  # of others
        ("exact", {"lr": 0.3, "hidden": 3, "optimizer": "adam", "particles": 2}),
        ("bootstrap", {"lr": 0.3, "loss_scale": 2.0}),
        ("product", {"lr": 0.3, "particles": 2}),
    ],
)
def test_settings_that_a_method_does_not_read_may_differ(method, changes, store):
    compute(store, method)
    before = files(store)
    assert compute(store, method, **changes) == 0
    (path,) = store.directory.glob("cells/*.json")
    path.unlink()
    compute(store, method, **changes)  # and it is true that it does not
    again, first = (json.loads(x)["cell"] for x in (path.read_text(), before[path.name]))
    for key in ("scores", "trace", "nll", "predictions"):
        assert again[key] == first[key]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"variant": "task"}, "variant=task, not domain"),
        ({"methods": ("wpf",)}, "method=wpf, not gd"),
        ({"seeds": 2}, "seed=1, not 0"),
        ({"preset": "paper"}, "preset=paper, not demo"),
    ],
)
def test_a_cell_of_another_grid_put_in_place_is_not_trusted(change, words, store, tmp_path):
    other = Store(tmp_path / "other")
    run_grid(dataclasses.replace(tiny_grid(), **change), other)
    compute(store)
    (ours,) = (store.directory / "cells").iterdir()
    stranger = sorted((other.directory / "cells").iterdir())[-1]
    ours.write_bytes(stranger.read_bytes())
    with pytest.raises(StoreError, match=f"{ours.stem} with {words}: choose another --out"):
        compute(store)


def test_particles_that_no_memory_holds_are_refused_at_once(store, monkeypatch):
    monkeypatch.setattr("orderless_lab.runs.grid.available_memory", lambda: 10**6)
    with pytest.raises(ValueError, match=r"wpf needs .* use fewer --particles"):
        compute(store, "wpf", particles=1000)
    assert not store.directory.exists()
    assert compute(store, particles=1000) == 1  # one network fits


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_cell_is_set_aside_and_computed_again(damage, store):
    compute(store, *BOTH)
    before = records(store)
    path = sorted((store.directory / "cells").glob("*.json"))[0]
    data = bytearray(path.read_bytes())
    data[data.index(b"0.05")] ^= 1
    path.write_bytes({"flip": data, "truncate": data[:-9], "empty": b""}[damage])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # to look changes nothing
        assert len(store.finished()) == 1 and path.exists()
    with pytest.raises(ValueError, match=r"is damaged .*: delete it and run again"):
        read_cell(path)
    with pytest.warns(UserWarning, match=r"was damaged: it is now .*damaged, and computed again"):
        assert compute(store, *BOTH) == 1
    assert records(store) == before
    assert path.with_suffix(".damaged").exists()


def stopped(store, after=7):
    """A run that was stopped in the middle of its only cell: its checkpoints, older first."""
    with pytest.raises(KeyboardInterrupt):
        compute(store, "wpf", checkpoint_every=0, listener=Listener(tick=stop_after(after)))
    paths = sorted((store.directory / "checkpoints").glob("*.st"), key=lambda p: p.stat().st_mtime)
    assert len(paths) == 2
    return paths


def resumed_at(store, **changes):
    ticks = []
    compute(store, "wpf", listener=Listener(tick=ticks.append), **changes)
    return ticks[0]


@pytest.mark.parametrize("place", [0, 200, -1])  # the length of the header, the header, a tensor
def test_a_damaged_checkpoint_is_passed_over(place, store, tmp_path):
    _, newer = stopped(store)
    data = bytearray(newer.read_bytes())
    data[place] ^= 4
    newer.write_bytes(data)
    with pytest.warns(UserWarning, match=f"{newer.name} was damaged: it is now .*damaged, and"):
        assert resumed_at(store) == 6
    whole = Store(tmp_path / "whole")
    compute(whole, "wpf")
    assert records(store) == records(whole)


def test_with_no_whole_checkpoint_a_cell_begins_again(store):
    for path in stopped(store):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(UserWarning, match="was damaged"):
        assert resumed_at(store) == 1


def test_the_newest_checkpoint_counts_whatever_the_clock_says(store):
    older, _ = stopped(store)
    os.utime(older, (2e9, 2e9))  # as if written before the clock was set back
    with pytest.raises(KeyboardInterrupt):  # 7 steps at once, then three more
        compute(store, "wpf", checkpoint_every=0, listener=Listener(tick=stop_after(10)))
    assert resumed_at(store) == 10


def test_a_checkpoint_of_other_settings_is_passed_over_however_far_it_came(store):
    stopped(store, after=9)
    assert resumed_at(store, lr=0.1) == 1


def test_what_a_killed_run_left_is_tidied_up(store):
    compute(store)
    (name,) = store.finished()
    store.save_checkpoint(name, {"left": 1})  # killed after the cell, before the checkpoint went
    assert compute(store) == 0
    assert list((store.directory / "checkpoints").iterdir()) == []


# ---------------------------------------------------------------------- the recorded command


def again(command):
    """The grid that a command means, as the command line reads it."""
    words = shlex.split(command)
    assert words[:2] == ["orderless", "run"]
    options = list(zip(words[3::2], words[4::2], strict=True))
    rest = {name: value for name, value in options if name != "--set"}
    return Grid.plan(
        words[2],
        rest["--preset"],
        methods=rest["--methods"],
        variant=rest.get("--scenario") or rest.get("--game"),
        permutations=int(rest["--permutations"]),
        seeds=int(rest["--seeds"]),
        texts=[value for name, value in options if name == "--set"],
    )


def test_the_recorded_command_makes_the_same_grid_again_though_the_preset_changes(monkeypatch):
    plan = {"variant": "class", "methods": "gd,ewc+wpf", "permutations": 2, "seeds": 3}
    grid = Grid.plan("splitmnist", "demo", **plan, lr=0.5, ewc_strength=2.0, chunk_size=2)
    assert again(grid.command()).cells() == grid.cells()
    suite = find_suite("splitmnist")
    usual = suite.presets("class")
    other = usual["demo"].settings.changed(lr=7.0, particles=3, hidden=9, ewc_strength=None)
    changed = usual | {"demo": usual["demo"]._replace(settings=other)}
    command = grid.command()
    monkeypatch.setattr(type(suite), "presets", lambda self, variant: changed)
    found = again(command).settings
    assert (found.lr, found.particles, found.hidden, found.ewc_strength) == (0.5, 8, 100, 2.0)


@pytest.mark.parametrize("name", [name for name in SUITES if name != "tiny"])
def test_every_preset_of_every_suite_has_a_command(name):
    suite = find_suite(name)
    for variant in suite.variants:
        for preset in suite.presets(variant):
            grid = Grid.plan(name, preset, variant=variant)
            for method in grid.methods:
                found = again(grid.command()).settings.read_by(suite.method(method))
                assert found == grid.settings.read_by(suite.method(method))


# ---------------------------------------------------------------------- the tidy table


def test_a_run_is_one_tidy_table(store):
    compute(store, *BOTH, permutations=2)
    frame = load_run(store.directory).to_frame()
    assert len(frame) == 2 * 2 * 3 and set(frame["method"]) == set(BOTH)
    for cell in load_run(store.directory).cells:
        rows = frame[(frame.method == cell.method) & (frame.order_index == cell.order_index)]
        matrix = cell.matrix()
        assert rows["score"].tolist() == matrix[-1].tolist()
        for task, place in zip(rows["task"], rows["place"], strict=True):
            assert cell.order[place - 1] == task
            learned = rows.loc[rows["task"] == task, "just_learned"].item()
            assert learned == matrix[place, task]


def test_cells_are_computed_in_float32_with_deterministic_kernels_if_asked(store):
    seen = []

    def look(steps):
        seen.append((torch.get_deterministic_debug_mode(), torch.backends.cudnn.deterministic))

    run_grid(tiny_grid(), store, deterministic=True, listener=Listener(tick=look))
    assert set(seen) == {(1, True)}  # 1: warn where there is no such kernel
    look(0)
    assert seen[-1] == (0, False)
