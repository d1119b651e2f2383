"""Where cells are computed: how many processes, in how much memory, on which devices."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import torch
from lab.tests.toys import tiny_grid

from orderless.ensemble.device import one_thread
from orderless_lab.runs import Grid, Store, run_grid
from orderless_lab.runs import launch as launching
from orderless_lab.runs.launch import Done, Item, Job, automatic_workers, cgroup_limits


def items(count: int, bytes_needed: int = 1) -> list[Item]:
    cells = tiny_grid().cells()
    return [Item(cells[0], Path(), "", bytes_needed)] * count


def test_a_process_for_every_core_that_has_work_and_memory(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(launching, "available_memory", lambda: 10**9)
    assert automatic_workers(items(100), "cpu") == 8
    assert automatic_workers(items(3), "cpu") == 3
    assert automatic_workers([], "cpu") == 1
    assert automatic_workers(items(100, 10**8), "cpu") == 5  # of half the memory
    assert automatic_workers(items(100, 10**12), "cpu") == 1


def test_a_process_for_every_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert automatic_workers(items(100), "cuda") == 4
    assert automatic_workers(items(100), "cuda:1") == 1

    class Number:
        value = 0

        def get_lock(self):
            return one_thread(False)

    number = Number()
    devices = []
    for _ in range(5):
        launching._begin(Job(device="cuda"), number)
        devices.append(launching._job.device)
    assert devices == ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0"]


def test_memory_is_what_the_control_group_allows(tmp_path, monkeypatch):
    limits = list(cgroup_limits(tmp_path))
    assert limits[-1] == tmp_path / "memory.max"
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(launching, "cgroup_limits", lambda: cgroup_limits(tmp_path))
    whole = launching.available_memory()
    (tmp_path / "memory.max").write_text("123456\n")
    assert launching.available_memory() == 123456 < whole


def test_a_method_needs_the_memory_of_its_own_networks():
    grid = Grid.plan("splitcifar100", "table1", methods="gd,wpf,exact")
    gd, wpf, exact = (grid.bytes_needed(grid.suite.method(name)) for name in grid.methods)
    assert gd < 2**30 < 10 * 2**30 < wpf
    assert 8 * 2048**2 * 8 < exact < 4 * 2**30


def test_processes_begin_with_the_cells_that_take_longest(tmp_path, monkeypatch):
    begun = []

    class Pool:
        def __init__(self, *arguments, **options):
            pass

        def submit(self, function, item):
            begun.append((item.cell.method, item.cell.order_index))
            done = Future()
            done.set_result(Done(item, None, []))
            return done

        def shutdown(self, **options):
            pass

    monkeypatch.setattr(launching, "ProcessPoolExecutor", Pool)
    run_grid(tiny_grid("gd", "exact", "wpf", permutations=2), Store(tmp_path), workers=2)
    others = [(name, order) for order in (0, 1) for name in ("gd", "wpf")]
    assert set(begun[:2]) == {("exact", 0), ("exact", 1)} and set(begun[2:]) == set(others)


def test_deterministic_kernels_leave_the_precision_that_was_asked_for():
    convolutions = torch.backends.cudnn.conv
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"  # as torch recommends by now
    try:
        with launching.deterministic(True):
            assert convolutions.fp32_precision == "ieee"
        assert convolutions.fp32_precision == "ieee" and not torch.backends.cudnn.deterministic
    finally:
        convolutions.fp32_precision = before
