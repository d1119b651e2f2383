"""Kill -9 at any moment, run the same command again: as if nothing had happened."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from tiny import run_into, without_time

from orderless.experiments import Store
from orderless.experiments.store import read_cell
from orderless.report import format_json, summarize

METHODS = ("wpf", "ewc+wpf", "si", "lwf+wpf", "er", "joint", "bootstrap", "adam")
TIMES = {"duration", "seconds_per_step"}


def everything(folder):
    """All that a run leaves behind, durations aside."""
    store = Store(folder)
    cells = {name: without_time(record) for name, record in store.finished().items()}
    assert list((store.directory / "checkpoints").iterdir()) == []
    assert list(store.directory.glob("*/.*.part")) == []
    snapshots = {p.name: p.read_bytes() for p in (store.directory / "snapshots").iterdir()}
    report = json.loads(format_json(summarize(store.directory, read=read_cell)))
    return cells, snapshots, without(report, TIMES)


def without(value, keys):
    if isinstance(value, dict):
        return {k: without(v, keys) for k, v in value.items() if k not in keys}
    return [without(v, keys) for v in value] if isinstance(value, list) else value


def test_killed_at_random_moments_the_end_is_the_same(tmp_path):
    """A process that has everything loaded forks each run, so that kills hit the work itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["orderless.experiments", "orderless.report"])
    moments, kills, runs = random.Random(0), 0, 0
    arguments = str(tmp_path / "killed"), METHODS, 1
    run_into(str(tmp_path / "whole"), METHODS, 1)
    while True:
        process = context.Process(target=run_into, args=arguments, kwargs={"checkpoint_every": 0.0})
        process.start()
        process.join(None if runs >= 12 else moments.uniform(0.1, 1.0))
        runs += 1
        if process.exitcode is None:
            process.kill()
            process.join()
            kills += 1
        else:
            assert process.exitcode == 0
            break
    assert kills >= 3  # or the test has tested nothing
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")


# ------------------------------------------------------------------ the command itself

COMMAND = "run splitmnist --preset demo --methods gd,ewc+wpf,er --permutations 1 --particles 2"
COMMAND += " --set iterations=20 --set hidden=8 --set fisher_samples=20 --checkpoint-every 0"


def start(folder, *more):
    """As from a terminal: a process group of its own that listens to Ctrl-C."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from orderless.cli import app; app()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *COMMAND.split(), "--out", str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.02)


def checkpoints(folder):
    return list(folder.glob("checkpoints/*.st"))


def group_is_gone(process):
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    process = start(folder, "--workers", "1")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "3 cells computed" in out and "[3/3]" in err
    return folder


def comparable(folder):
    """Commands differ in their --out and --workers."""
    cells, snapshots, report = everything(folder)
    return without(cells, {"command"}), snapshots, without(report, {"command"})


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(whole, tmp_path):
    process = start(tmp_path / "run", "--workers", "1")
    wait_for(lambda: checkpoints(tmp_path / "run"), process)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert err.endswith("orderless: stopped; the same command goes on from here\n")
    assert "Traceback" not in err
    assert len(Store(tmp_path / "run").finished()) < 3

    process = start(tmp_path / "run", "--workers", "1")  # now kill -9 this one
    wait_for(lambda: len(list((tmp_path / "run").glob("cells/*ewc+wpf-*.json"))), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()

    process = start(tmp_path / "run", "--workers", "1")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert comparable(tmp_path / "run") == comparable(whole)


def test_workers_stop_with_ctrl_c_die_with_their_parent_and_compute_the_same(whole, tmp_path):
    process = start(tmp_path / "run", "--workers", "2")
    wait_for(lambda: checkpoints(tmp_path / "run"), process)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err and "goes on from here" in err
    wait_for_end(process)

    seen = {path: path.stat().st_mtime_ns for path in checkpoints(tmp_path / "run")}
    process = start(tmp_path / "run", "--workers", "2")
    wait_for(
        lambda: any(p.stat().st_mtime_ns != seen.get(p) for p in checkpoints(tmp_path / "run")),
        process,
    )
    os.kill(process.pid, signal.SIGKILL)  # the parent only
    process.communicate()
    wait_for_end(process)

    process = start(tmp_path / "run", "--workers", "2")
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert comparable(tmp_path / "run") == comparable(whole)
    assert err.count("orderless: warning") <= 1  # the same warning of several workers


def wait_for_end(process, seconds=30):
    deadline = time.monotonic() + seconds
    while not group_is_gone(process):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)
