"""Cells as Ray tasks: the same files as one after another, also when workers are lost."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from lab.tests.system.faults.bench import everything
from tests.cli.commands import refused

from orderless_lab.runs import Grid, Store, StoreError, run_grid
from orderless_lab.runs.ray import Ray, import_ray

pytestmark = pytest.mark.slow

ray = import_ray()
SMALL = {"particles": 2, "hidden": 4, "iterations": 150, "fisher_samples": 10}
GRID = Grid.plan("splitmnist", "demo", methods="ewc+wpf,er", permutations=1, **SMALL)


@pytest.fixture
def not_connected(monkeypatch):
    """Whatever other tests do."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


def ray_refused(*words):
    return refused("run", *words, "--preset", "demo", "--launcher", "ray")


def test_without_ray_a_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = ray_refused("splitmnist", "--methods", "gd", "--out", str(tmp_path))
    assert "--launcher ray needs the package ray: run `pip install 'orderless-lab[ray]'`" in said


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("127.0.0.1:1", "cannot use Ray at '127.0.0.1:1': "), ("cluster", "give HOST:PORT")],
)
def test_a_cluster_that_is_not_there_is_a_sentence(address, sentence, not_connected, tmp_path):
    words = ["splitmnist", "--methods", "gd", "--ray-address", address, "--out", str(tmp_path)]
    assert sentence in ray_refused(*words)


def test_a_node_that_does_not_come_up_is_a_sentence(not_connected, tmp_path, monkeypatch):
    def init(*args, **options):
        raise Exception(
            "The current node timed out during startup."
        )  # Ray's own, on a busy machine

    monkeypatch.setattr(ray, "init", init)
    said = ray_refused("splitmnist", "--methods", "gd", "--out", str(tmp_path))
    assert "cannot use Ray at 'local': The current node timed out during startup." in said


def test_what_does_not_go_with_ray_is_a_sentence():
    assert "must be 0 or more" in ray_refused(
        "splitmnist", "--device", "cuda", "--gpus-per-cell", "-1"
    )


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    run_grid(GRID, Store(folder))
    return everything(folder)


def test_one_process_and_ray_leave_the_same_files(ray_cluster, one_process, tmp_path):
    run_grid(GRID, Store(tmp_path / "ray"), ray=Ray())
    assert everything(tmp_path / "ray") == one_process
    assert run_grid(GRID, Store(tmp_path / "ray"), ray=Ray()) == 0


def at_work():
    """Process ids of this test's Ray workers that compute a cell."""
    parents, found = {}, []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status = (process / "stat").read_text().rsplit(")")[-1].split()
            parents[int(process.name)] = int(status[1])
            if (process / "cmdline").read_bytes().startswith(b"ray::_compute"):
                found.append(int(process.name))
        except OSError:  # it has just ended
            continue
    return [pid for pid in found if parents.get(parents[pid]) == os.getpid()]  # Ray is our child


def kill_workers(checkpoints: Path, times: int, killed: list[int]) -> None:
    """As soon as a cell has come some way, and again."""
    deadline = time.monotonic() + 90
    while len(killed) < times and time.monotonic() < deadline:
        seen = {path: path.stat().st_mtime_ns for path in checkpoints.glob("*.st")}
        time.sleep(0.3)
        written = [p for p in checkpoints.glob("*.st") if p.stat().st_mtime_ns != seen.get(p)]
        if workers := at_work() if written else []:
            os.kill(workers[0], signal.SIGKILL)
            killed.append(workers[0])


class Elsewhere(Store):
    """As seen from machines that do not share it: their mark is not the one that lies there."""

    def mark(self):
        return "0" * 32


@pytest.mark.parametrize("kind", [Store, Elsewhere], ids=["shared directory", "none shared"])
def test_a_killed_worker_is_replaced_and_its_cell_goes_on(
    kind, ray_cluster, one_process, tmp_path, record_property, monkeypatch
):
    store, killed = Store(tmp_path / "run"), []
    if kind is Elsewhere:
        monkeypatch.setattr("orderless_lab.runs.ray.Store", Elsewhere)
    cached = ray_cluster / "orderless" / "checkpoints" / ("0" * 32)
    checkpoints = (store.directory if kind is Store else cached) / "checkpoints"
    killer = threading.Thread(target=kill_workers, args=(checkpoints, 1, killed))
    killer.start()
    run_grid(GRID, store, ray=Ray(), checkpoint_every=0.1)
    killer.join()
    record_property("fault: killed Ray worker", len(killed))
    assert len(killed) >= 1  # or the test has tested nothing
    assert everything(tmp_path / "run") == one_process
    assert list(checkpoints.iterdir()) == []


def test_a_machine_with_other_versions_is_named(ray_cluster, tmp_path, monkeypatch):
    wanted = {"orderless": "9.9"}
    monkeypatch.setattr("orderless_lab.runs.ray.versions", lambda: wanted)
    with pytest.raises(StoreError, match="has {'orderless': .*, not {'orderless': '9.9'}: install"):
        run_grid(GRID, Store(tmp_path / "run"), ray=Ray())
