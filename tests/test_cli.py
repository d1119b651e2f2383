"""The command line: what it prints, what it refuses, what it leaves behind."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from orderless import __version__
from orderless.cli.main import app
from orderless_lab.experiments import Store
from orderless_lab.experiments.tuning import beyond
from orderless_lab.methods.presets import PRESETS
from orderless_lab.storage import directory as storage

SMALL = ["--preset", "demo", "--particles", "2", "--workers", "1", "--permutations", "1"]
SMALL += ["--set", "iterations=2", "--set", "hidden=4", "--set", "fisher_samples=8"]


def orderless(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments):
    """The one sentence on stderr of a command that ends with exit code 2."""
    result = orderless(*arguments)
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("orderless: "), result.stderr
    assert result.stdout == ""
    return lines[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    result = orderless("run", "splitmnist", *SMALL, "--methods", "gd,gd, ewc", "--out", folder)
    assert result.exit_code == 0, result.output
    assert "2 cells computed" in result.stdout and "SplitMNIST" in result.stdout
    return folder


def test_settings_name_the_values_of_benchmarks_and_games_that_have_their_own():
    said = orderless("settings", "table1").stdout
    assert "\n  lr=0.001 (splitmnist: 0.003; splitcifar100: 0.01)\n" in said
    assert "\n  batch_size=128\n" in said
    assert "levels=0-2 (starpilot: 8,9,16; fruitbot: 5,18,19" in orderless("settings", "gpu").stdout
    lines = orderless("settings").stdout.splitlines()
    assert all(line.startswith(("  ", "Benchmarks: ")) for line in lines if line)
    assert all(line.startswith(" " * 6) or "=" in line for line in lines if line[:2] == "  ")


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_quietly(tmp_path):
    data, head = tmp_path / "x.csv", tmp_path / "head.st"
    data.write_text("a,label\n" + "".join(f"{row},{row % 2}\n" for row in range(20)))
    fit = orderless("fit", "--data", data, "--out", head, "--count", "8", "--workers", "1")
    assert fit.exit_code == 0, fit.output
    for words in (["settings"], ["predict", head, "--data", data]):
        command = [sys.executable, "-m", "orderless", *map(str, words)]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        running.stdout.close()
        with running.stderr as stream:
            assert stream.read() == b""
        assert running.wait() == 1


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mnist"], "unknown benchmark 'mnist': choose from splitmnist, splitcifar100"),
        (["mnist"], "choose from splitmnist"),
        (["splitmnist", "--methods", "gd,sgd"], "unknown method 'sgd': choose from wpf"),
        (["splitmnist", "--methods", ","], "name at least one method"),
        (["splitmnist", "--gpus-per-cell", "0.5"], "--gpus-per-cell is not for --launcher local"),
        (["splitmnist", "--ray-address", "auto"], "--ray-address is not for --launcher local"),
        (["splitmnist", "--methods", "ewc-tuned"], "ewc-tuned needs a strength"),
        (["splitmnist", "--preset", "x"], "unknown preset 'x': choose from demo"),
        (["splitmnist", "--scenario", "x"], "scenario must be domain, task or class, got 'x'"),
        (["splitmnist", "--device", "tpu"], "device must be auto, cpu or cuda, got 'tpu'"),
        (["splitmnist", "--permutations", "0"], "permutations must be at least 1, got 0"),
        (["splitmnist", "--permutations", "-3"], "permutations must be at least 1, got -3"),
        (["splitmnist", "--permutations", "121"], "permutations must be at most 120"),
        (["splitmnist", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["splitmnist", "--particles", "0"], "particles must be at least 1, got 0"),
        (["splitmnist", "--particles", "-2"], "particles must be at least 1, got -2"),
        (["splitmnist", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["splitmnist", "--checkpoint-every", "-1"], "--checkpoint-every must be at least 0"),
        (["splitmnist", "--set", "lr=-1"], "lr must be a positive number, got -1.0"),
        (["splitmnist", "--set", "speed=3"], "known key, got 'speed=3'; keys: adam_lr"),
        (["splitmnist", "--set", "batch_size=x"], "batch_size must be a whole number, got 'x'"),
        (["splitmnist", "--out", "/dev/null/x"], "cannot write to /dev/null/x: Not a directory"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused("run", "--preset", "demo", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_cuda_without_a_card_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = refused("run", "splitmnist", "--preset", "demo", "--device", "cuda")
    assert "no CUDA device here: use cpu" in said


@pytest.mark.parametrize(
    "arguments", [["run"], ["run", "splitmnist", "--permutations", "two"], ["walk"], ["report"]]
)
def test_wrong_usage_is_exit_code_2(arguments):
    assert orderless(*arguments).exit_code == 2


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    monkeypatch.delenv("ORDERLESS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_missing_data_names_the_three_ways(no_data):
    said = refused("run", "splitmnist", "--out", no_data / "run")
    assert "--data-dir" in said and "ORDERLESS_DATA" in said and "orderless data fetch" in said
    assert not (no_data / "run").exists()


@pytest.mark.slow
def test_one_flipped_byte_in_a_data_file_is_refused(no_data, monkeypatch):
    """Four small files in MNIST's format, with checksums that fit until a byte is flipped."""
    raw, sums = no_data / "MNIST" / "raw", {}
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        for name, shape in (("images-idx3-ubyte", (40, 28, 28)), ("labels-idx1-ubyte", (40,))):
            array = np.arange(np.prod(shape)).reshape(shape) % 10
            data = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            data += array.astype(np.uint8).tobytes()
            (raw / f"{part}-{name}").write_bytes(data)
            sums[f"{part}-{name}"] = ("", hashlib.md5(data).hexdigest())
    monkeypatch.setattr("orderless_lab.scenarios.datasets.MNIST_MD5S", sums)
    full = ["--set", "source=full", "--data-dir", no_data, "--methods", "gd"]
    result = orderless("run", "splitmnist", *SMALL, *full, "--out", no_data / "a")
    assert result.exit_code == 0, result.output

    file = raw / "t10k-labels-idx1-ubyte"
    file.write_bytes(file.read_bytes()[:-1] + b"\x08")
    said = refused("run", "splitmnist", *SMALL, *full, "--out", no_data / "b")
    assert str(file) in said and "data fetch mnist" in said
    assert not (no_data / "b").exists()
    checked = orderless("data", "check", "mnist", "--data-dir", no_data)
    assert checked.exit_code == 2 and f"BAD {file}" in checked.stdout


def test_running_out_of_memory_is_a_sentence(tmp_path, monkeypatch):
    def greedy(*arguments, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")

    monkeypatch.setattr("orderless_lab.experiments.run_grid", greedy)
    said = refused("run", "splitmnist", "--preset", "demo", "--out", tmp_path)
    assert "out of memory: use fewer --particles" in said
    monkeypatch.setattr("orderless_lab.rl.experts.ExpertTraining", greedy)
    said = refused("expert", "train", "starpilot", "--out", tmp_path)
    assert "out of memory: use fewer --envs or a smaller --rollout" in said


def test_an_error_of_ours_is_not_hidden(tmp_path, monkeypatch):
    def wrong(*arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr("orderless_lab.experiments.run_grid", wrong)
    result = orderless("run", "splitmnist", "--preset", "demo", "--out", tmp_path)
    assert isinstance(result.exception, RuntimeError)


# ------------------------------------------------------------------ run


@pytest.mark.slow
def test_a_second_run_computes_nothing_and_writes_the_same_report(finished):
    before = (finished / "report.json").read_bytes()
    result = orderless("run", "splitmnist", *SMALL, "--methods", "gd,ewc", "--out", finished)
    assert result.exit_code == 0 and "0 cells computed" in result.stdout
    assert (finished / "report.json").read_bytes() == before


def test_other_settings_are_refused(finished):
    more = ["--set", "lr=0.5", "--methods", "gd", "--out", finished]
    said = refused("run", "splitmnist", *SMALL, *more)
    usual = PRESETS["demo"].lr
    assert f"with lr={usual}, not 0.5: choose another --out" in said


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(tmp_path):
    result = orderless(
        "run", "splitmnist", *SMALL, "--methods", "gd,wpf", "--dry-run", "--out", tmp_path / "run"
    )
    assert result.exit_code == 0, result.output
    assert "2 cells, 0 finished, 2 to compute" in result.stdout
    assert "cells" in result.stdout and "MiB" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_full_disk_stops_with_a_sentence_and_the_same_command_goes_on(tmp_path, monkeypatch):
    """A real one where mounting is allowed, else one that is played."""
    folder = tmp_path / "disk"
    folder.mkdir()
    small = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = shutil.which("mount") and subprocess.run(small, capture_output=True).returncode == 0
    command = ["run", "splitmnist", *SMALL, "--methods", "gd,adam,si", "--out", folder / "run"]
    try:
        if mounted:
            (folder / "filler").write_bytes(bytes(44 * 1024))  # room for one cell
        else:
            write, room = storage.write_atomically, [1]

            def limited(path, data):
                if not room[0]:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                room[0] -= 1
                write(path, data)

            monkeypatch.setattr(storage, "write_atomically", limited)
        result = orderless(*command)
        assert result.exit_code == 2, result.output
        last = result.stderr.strip().splitlines()[-1]
        assert last.startswith("orderless: cannot write to") and "No space left" in last
        assert "finished cells are safe" in last and "Traceback" not in result.output
        done = Store(folder / "run").finished()
        assert 1 <= len(done) < 3
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=4m", str(folder)], check=True)
        monkeypatch.undo()
        result = orderless(*command)
        assert result.exit_code == 0, result.output
        assert f"{3 - len(done)} cells computed" in result.stdout
        assert done.items() <= Store(folder / "run").finished().items()
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_warnings_are_sentences_said_once(tmp_path):
    """At once and certain: a network whose Fisher information is 0 says so for every task."""
    methods = ["--methods", "ewc,ewc+wpf", "--set", "lr=1e4", "--out", tmp_path]
    result = orderless("run", "splitmnist", *SMALL, *methods)
    assert result.exit_code == 0, result.output
    warned = [line for line in result.stderr.splitlines() if "Fisher information" in line]
    assert len(warned) == 1 and warned[0].startswith("orderless: warning (said once): ")
    assert "UserWarning" not in result.output


# ------------------------------------------------------------------ report, tune, data


def test_report_json_is_json_and_nothing_else(finished):
    result = orderless("report", finished, "--json")
    assert result.exit_code == 0 and result.stderr == ""
    summary = json.loads(result.stdout)
    assert set(summary["methods"]) == {"gd", "ewc"}
    assert summary["benchmark"] == "splitmnist"
    for key in ("average", "average_logits", "average_probs", "variance", "nll", "ece"):
        assert key in summary["methods"]["gd"]


def test_report_of_nothing_is_refused(tmp_path):
    assert "holds no finished cells" in refused("report", tmp_path)
    assert "is not a directory" in refused("report", tmp_path / "x")
    assert "holds no finished cells" in refused("report", tmp_path, "--json")


def test_report_of_a_damaged_cell_names_the_file(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    path = sorted((tmp_path / "run" / "cells").glob("*.json"))[0]
    path.write_bytes(path.read_bytes()[:-50])
    assert str(path) in refused("report", tmp_path / "run")


@pytest.mark.slow
def test_tune_picks_the_best_value(tmp_path):
    settings = ["--preset", "demo", "--set", "iterations=30", "--set", "hidden=8"]
    result = orderless("tune", "splitmnist", "lr", "1e-9,0.3,1e6", *settings, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "best: lr=0.3"
    for value in ("1e-9", "0.3"):
        (record,) = Store(tmp_path / f"lr={value}").finished().values()
        assert record["settings"]["validation"] == 0.1


@pytest.mark.slow
def test_tune_goes_on_where_the_best_value_lies_at_the_end(tmp_path):
    settings = ["--preset", "demo", "--set", "iterations=30", "--set", "hidden=8"]
    command = ["tune", "splitmnist", "lr", "1e-9,0.1", *settings, "--out", tmp_path]
    result = orderless(*command)
    assert result.exit_code == 0, result.output
    *_, said, best = result.stdout.splitlines()
    assert said.startswith("the best value lay at the grid's end") and "; also tried 1" in said
    assert best != "best: lr=1e-9" and (tmp_path / "lr=1").is_dir()


@pytest.mark.parametrize(
    ("scores", "following"),
    [
        ({"1": 0.5, "10": 0.6}, "100"),
        ({"1": 0.5, "3": 0.6}, "9"),
        ({"1e-6": 0.5, "1": 0.6}, "10"),  # at most tenfold
        ({"1": 0.7, "10": 0.6}, "0.1"),
        ({"10": 0.7, "1": 0.5, "100": 0.6}, None),
        ({"1": 0.5, "10": 0.5}, None),  # no better at the end than inside
        ({"0": 0.9, "1": 0.5}, None),  # nothing comes before 0
        ({"0": 0.5, "1": 0.9}, None),  # 0 gives no ratio
        ({"1": 0.5}, None),
        ({"relu": 0.5, "leaves": 0.6}, None),
    ],
)
def test_what_comes_after_the_end_of_a_grid(scores, following):
    assert beyond(list(scores.items())) == following


@pytest.mark.parametrize(
    "words",
    [
        ["run", "splitmnist", "--preset", "demo", "--out", ""],
        ["tune", "splitmnist", "lr", "1", "--out="],
        ["audit", "a:b", "--tasks", "a:c", "--keep", ""],
        ["expert", "train", "starpilot", "--out", ""],
        ["expert", "collect", "starpilot", "--out", ""],
        ["fit", "--data", ".", "--out", ""],
        ["report", ""],
    ],
)
def test_an_empty_name_is_not_the_current_folder(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = orderless(*words)
    assert result.exit_code == 2 and "the name is empty" in result.output, result.output
    assert list(tmp_path.iterdir()) == []


def test_tune_refuses_what_it_cannot_try(tmp_path):
    command = ["tune", "splitmnist", "--preset", "demo", "--out", tmp_path / "run"]
    assert "known key, got 'x=1'" in refused(*command, "x", "1")
    assert "lr must be a positive number" in refused(*command, "lr", "0.1,-1")
    assert "at least one value" in refused(*command, "lr", ",")
    assert "set validation=0.1" in refused(*command, "lr", "1", "--set", "validation=0")
    assert not (tmp_path / "run").exists()


def test_data_list_says_where_everything_is(no_data):
    result = orderless("data", "list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["mnist", "cifar100", "intents", "mnist-5k"]
    assert "not found; `orderless data fetch mnist` gets it" in lines[0]


def test_data_check_and_fetch_know_the_names(no_data):
    assert "There is no data set 'bad'" in refused("data", "fetch", "bad")
    assert "There is no data set 'bad'" in refused("data", "check", "bad")
    assert orderless("data", "check", "mnist-5k").exit_code == 0
    result = orderless("data", "check")
    assert result.exit_code == 0 and "mnist: not found" in result.stdout
    assert "orderless data fetch mnist" in refused("data", "check", "mnist")


def test_version_and_help():
    result = orderless("--version")
    assert (result.exit_code, result.stdout) == (0, f"orderless {__version__}\n")
    for command in ("run", "report", "tune", "data"):
        assert orderless(command, "--help").exit_code == 0


@pytest.mark.slow
def test_the_module_is_the_command(tmp_path):
    command = [sys.executable, "-m", "orderless", "report", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("orderless: ") and "Traceback" not in result.stderr
