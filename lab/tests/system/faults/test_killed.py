"""Kill -9 at any moment, run the same command again: as if nothing had happened."""

import os
import signal
import sys
import time

import pytest
from lab.tests.system.faults.bench import (
    FAULTS,
    METHODS,
    assert_nothing_is_torn,
    everything,
    randomness,
    undisturbed,
)
from lab.tests.system.faults.zygote import Zygote
from tests.processes import warm_context
from typer.testing import CliRunner

from orderless.cli import app as command_line
from orderless.cli.main import app
from orderless_lab.runs import Store

pytestmark = pytest.mark.slow


def test_killed_at_random_points_the_end_is_the_same(tmp_path, record_property):
    """At a file operation, or at any moment at all; whatever has a name is whole after each."""
    chance, kills = randomness("kills"), 0
    expected, zygote = undisturbed(tmp_path / "whole"), Zygote(METHODS)
    while kills < FAULTS:
        folder, status = tmp_path / str(kills), -signal.SIGKILL
        while status == -signal.SIGKILL:
            if chance.random() < 0.6:
                status = zygote.run(folder, event=chance.randint(1, 100))
            else:
                status = zygote.run(folder, kill_after=chance.uniform(0.01, 0.6))
            if status == -signal.SIGKILL:
                kills += 1
                record_property("fault: kill -9", 1)
            assert_nothing_is_torn(folder)
        assert status == 0
        assert everything(folder) == expected
    zygote.close()


# ------------------------------------------------------------------ the command itself

COMMAND = "run splitmnist --preset demo --methods gd,ewc+wpf,er --permutations 1 --particles 2"
COMMAND += " --set iterations=8 --set hidden=8 --set fisher_samples=20 --checkpoint-every 0"


class Command:
    """As from a terminal: a process group of its own that listens to Ctrl-C.

    It has torch loaded already; its workers are started as everybody's and load all themselves.
    """

    def __init__(self, folder, *more):
        self._said = folder.with_name(f"{time.monotonic_ns()}.err")
        words = [*COMMAND.split(), "--out", str(folder), *more]
        self._process = warm_context().Process(target=obey, args=(words, self._said))
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def communicate(self):
        """Wait for its end; its exit status, and what it wrote to stderr."""
        self._process.join()
        return self._process.exitcode, self._said.read_text()


def obey(words, said):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(os.devnull, "w") as nowhere, open(said, "w") as file:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv[1:] = words
    command_line()


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.02)


def assert_stopped(process, expected):
    status, err = process.communicate()
    assert status == expected, err
    assert err.endswith("orderless: stopped; the same command resumes from what was saved\n")
    assert "Traceback" not in err


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
    result = CliRunner().invoke(app, [*COMMAND.split(), "--workers", "1", "--out", str(folder)])
    assert result.exit_code == 0, result.stderr
    assert "3 cells computed" in result.stdout and "[3/3]" in result.stderr
    return folder


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(whole, tmp_path):
    process = Command(tmp_path / "run", "--workers", "1")
    wait_for(lambda: checkpoints(tmp_path / "run"), process)
    os.killpg(process.pid, signal.SIGINT)
    assert_stopped(process, 130)
    assert len(Store(tmp_path / "run").finished()) < 3

    process = Command(tmp_path / "run", "--workers", "1")  # now kill -9 this one
    wait_for(lambda: len(list((tmp_path / "run").glob("cells/*ewc+wpf-*.json"))), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()

    process = Command(tmp_path / "run", "--workers", "1")
    status, err = process.communicate()
    assert status == 0, err
    assert everything(tmp_path / "run") == everything(whole)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_a_scheduler_ends_is_told_like_what_ctrl_c_ends(workers, tmp_path):
    process = Command(tmp_path / "run", "--workers", workers)
    wait_for(lambda: checkpoints(tmp_path / "run"), process)
    os.kill(process.pid, signal.SIGTERM)  # as `timeout` and kubelet do: the parent only
    assert_stopped(process, 128 + signal.SIGTERM)
    wait_for_end(process)


def test_workers_stop_with_ctrl_c_die_with_their_parent_and_compute_the_same(whole, tmp_path):
    process = Command(tmp_path / "run", "--workers", "2")
    wait_for(lambda: checkpoints(tmp_path / "run"), process)
    os.killpg(process.pid, signal.SIGINT)
    assert_stopped(process, 130)
    wait_for_end(process)

    seen = {path: path.stat().st_mtime_ns for path in checkpoints(tmp_path / "run")}
    process = Command(tmp_path / "run", "--workers", "2")
    wait_for(
        lambda: any(p.stat().st_mtime_ns != seen.get(p) for p in checkpoints(tmp_path / "run")),
        process,
    )
    os.kill(process.pid, signal.SIGKILL)  # the parent only
    process.communicate()
    wait_for_end(process)

    process = Command(tmp_path / "run", "--workers", "2")
    status, err = process.communicate()
    assert status == 0, err
    assert everything(tmp_path / "run") == everything(whole)
    assert err.count("orderless: warning") <= 1  # the same warning of several workers


def wait_for_end(process, seconds=120):
    deadline = time.monotonic() + seconds
    while not group_is_gone(process):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)
