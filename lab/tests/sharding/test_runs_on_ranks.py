"""Experiments on several ranks: the same cells, whoever computes them, killed and resumed too."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lab.tests.sharding.processes import on_ranks
from typer.testing import CliRunner

from orderless.cli.main import app
from orderless.ensemble.sharding import RankLost
from orderless_lab.experiments import Grid, Store, run_grid
from orderless_lab.experiments.launch.ranks import SharedStore, joined
from orderless_lab.experiments.store import StoreError
from orderless_lab.methods.presets import find_preset

pytestmark = pytest.mark.slow

METHODS = ("gd", "wpf", "averaging", "bootstrap", "rb", "ewc+wpf")
CHANGES = {
    **{"particles": 5, "iterations": 6, "hidden": 8, "test_batch": 100, "fisher_samples": 20},
    **{"ewc_strength": 1.0, "rb_features": 32, "rb_particles": 4, "lr": 0.02},
    "rb_map": "relu",
}


def compute(group, folder, methods=METHODS):
    settings = find_preset("demo", "splitmnist").changed(**CHANGES)
    grid = Grid("splitmnist", "domain", "demo", methods, 1, 1, settings)
    return run_grid(grid, Store(folder), group=group, checkpoint_every=0.2)


def compute_twice(group, folder, methods):
    return [compute(group, folder, methods) for _ in range(2)]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    compute(None, folder)
    return found(folder)


def found(folder):
    """Finished cells by method, without what may differ between two runs on one machine."""
    store, ours = Store(folder), ("duration", "command")
    assert list((store.directory / "checkpoints").iterdir()) == []
    records = store.finished().values()
    return {r["method"]: {k: v for k, v in r.items() if k not in ours} for r in records}


def assert_same(results, expected, methods):
    assert set(results) == set(methods)
    for method in methods:
        assert results[method].keys() == expected[method].keys()
        for name, value in expected[method].items():
            # one network is computed by all ranks alike, and the exact filter by exact sums
            if method in ("gd", "rb") or not isinstance(value, (float, list, dict)):
                assert results[method][name] == value, (method, name)
            else:
                assert numbers(results[method][name]) == pytest.approx(
                    numbers(value), rel=1e-6, abs=1e-6
                ), (method, name)


def numbers(value):
    """All numbers in a nested value; text stands for its length and is compared above."""
    if isinstance(value, dict):
        return [n for key in sorted(value) for n in numbers(value[key])]
    if isinstance(value, list):
        return [n for each in value for n in numbers(each)]
    return [] if isinstance(value, str) or value is None else [float(value)]


@pytest.mark.parametrize("ranks, methods", [(2, METHODS), (3, ("wpf", "bootstrap", "rb"))])
def test_split_mnist_does_not_depend_on_the_number_of_ranks(ranks, methods, one, tmp_path):
    computed = on_ranks(ranks, tmp_path, compute_twice, tmp_path / "run", methods)
    assert computed == [[len(methods), 0]] * ranks  # the second time nothing is missing
    results = found(tmp_path / "run")
    assert_same(results, one, methods)
    for method in methods:
        assert results[method]["predictions"] == one[method]["predictions"]


def look(group, folder):
    """A directory for each rank: not what the first rank writes to."""
    store = SharedStore(folder / str(dist.get_rank(group)), group)
    store.directory.mkdir(parents=True)
    try:
        with store.lock():
            return "it is mine"
    except StoreError as error:
        return str(error)


def test_a_rank_that_does_not_see_the_run_directory_says_so(tmp_path):
    first, second = on_ranks(2, tmp_path, look, tmp_path / "runs")
    assert first == "it is mine"
    assert "choose an --out that all machines share" in second


# ------------------------------------------------------------------ torchrun


def test_a_rank_that_is_lost_while_a_file_is_written_says_nothing_about_the_disk(
    tmp_path, monkeypatch
):
    """The first rank is told to end wherever it is: in the middle of a checkpoint, say."""

    def told(path, data):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("orderless.io.write_atomically", told)
    monkeypatch.setattr("orderless_lab.experiments.launch.ranks.ranks", lambda: 2)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(RankLost, match="the same command resumes"), joined(torch.device("cpu")):
            Store(tmp_path).save_checkpoint("x", {})
        os.kill(os.getpid(), signal.SIGTERM)  # torchrun's comes late: there is time to say so
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_does_not_go_with_torchrun_is_a_sentence(monkeypatch, tmp_path):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for words, said in (
        (["splitmnist", "--workers", "2"], "--workers is for one process: leave it out"),
        (["regime"], "regime is for one process: leave it out"),
    ):
        result = CliRunner().invoke(app, ["run", *words, "--out", str(tmp_path)])
        assert result.exit_code == 2
        assert said in result.stderr and result.stderr.count("\n") == 1


def torchrun(ranks: int, folder: Path, checkpoint_every: str) -> subprocess.Popen:
    words = ["run", "splitmnist", "--preset", "demo", "--permutations", "1", "--device", "cpu"]
    words += [
        "--methods",
        "wpf,bootstrap",
        "--checkpoint-every",
        checkpoint_every,
        "--out",
        str(folder),
    ]
    for name, value in CHANGES.items():
        words += ["--set", f"{name}={value}"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", str(ranks), "-m", "orderless"]
    return subprocess.Popen(
        [*launch, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def ranks_of(process: subprocess.Popen) -> dict[int, int]:
    """rank -> process id, of torchrun's children."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = {}
    for child in children:
        rank = re.search(r"\0RANK=(\d+)\0", Path(f"/proc/{child}/environ").read_text())
        if rank:
            found[int(rank[1])] = int(child)
    return found


def test_a_rank_is_killed_and_the_same_command_goes_on_with_another_number(
    one, tmp_path, record_property
):
    folder = tmp_path / "run"
    process = torchrun(3, folder, "0")
    deadline = time.monotonic() + 120
    while not list(folder.glob("checkpoints/*bootstrap*.st")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.02)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    record_property("fault: killed rank", 1)
    _, err = process.communicate(timeout=120)  # torchrun itself waits 30 s for those who hang
    assert process.returncode == 1
    ours = [line for line in err.splitlines() if line.startswith("orderless: ")]
    assert ours and all("another rank has ended" in line for line in ours)
    assert all("the same command resumes from the last checkpoint" in line for line in ours)
    assert len(Store(folder).finished()) == 1

    process = torchrun(2, folder, "60")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "cells computed" in out and out.count("wrote") == len(set(out.split("wrote")[1:]))
    assert err.count("[2/2]") == 1  # by one rank only
    assert_same(found(folder), one, ("wpf", "bootstrap"))
    assert json.loads((folder / "report.json").read_text())
