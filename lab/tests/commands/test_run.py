"""`orderless run`: what it prints, what it refuses, what it leaves behind."""

import pytest
import torch
from lab.tests.toys import SMALL
from tests.cli.commands import refused, run
from typer.testing import CliRunner

from orderless.cli.main import app


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("mnist", ["'mnist'", "splitmnist"]),
        ("splitmnist --methods gd,sgd", ["'sgd'", "wpf"]),
        ("splitmnist --methods ,", ["at least one method"]),
        ("splitmnist --methods wfp", ["'wfp'", "did you mean 'wpf'"]),
        ("splitmnist --game starpilot", ["--game", "splitmnist"]),
        ("splitmnist --shard 3/2", ["--shard", "'3/2'"]),
        ("splitmnist --gpus-per-cell 0.5", ["--gpus-per-cell", "ray"]),
        ("splitmnist --preset x", ["'x'", "demo"]),
        ("splitmnist --scenario x", ["'x'", "domain"]),
        ("splitmnist --device tpu", ["'tpu'", "cuda"]),
        ("splitmnist --permutations 0", ["permutations", "at least 1", "got 0"]),
        ("splitmnist --permutations 121", ["permutations", "at most 120"]),
        ("splitmnist --workers 0", ["--workers", "got 0"]),
        ("splitmnist --checkpoint-every -1", ["--checkpoint-every", "at least 0"]),
        ("splitmnist --set lr=-1", ["lr", "-1"]),
        ("splitmnist --set speed=3", ["'speed'", "orderless settings"]),
        ("splitmnist --set batch_size=x", ["batch_size=x"]),
        ("splitmnist --out /dev/null/x", ["/dev/null/x", "Not a directory"]),
    ],
)
def test_bad_input_is_one_sentence(words, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused("run", "--preset", "demo", *words.split())
    assert all(part in said for part in named), said
    assert list(tmp_path.iterdir()) == []


def test_cuda_without_a_card_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = refused("run", "splitmnist", "--preset", "demo", "--device", "cuda")
    assert "no CUDA device here: use cpu" in said


def test_memory_that_runs_out_is_a_sentence_and_a_fault_of_a_program_is_not(tmp_path, monkeypatch):
    def fails(*arguments, **options):
        raise RuntimeError(reason)

    monkeypatch.setattr("orderless_lab.runs.grid.run_grids", fails)
    monkeypatch.setattr("orderless_lab.rl.experts.ExpertTraining", fails)
    command = ["run", "splitmnist", "--preset", "demo", "--out", str(tmp_path)]
    reason = "DefaultCPUAllocator: can't allocate memory: you tried to"
    assert "out of memory: use fewer --particles" in refused(*command)
    said = refused("expert", "train", "starpilot", "--out", tmp_path)
    assert "out of memory: use fewer --envs" in said
    reason = "a bug"
    assert isinstance(CliRunner().invoke(app, command).exception, RuntimeError)


@pytest.mark.slow
def test_a_second_run_computes_nothing_and_writes_the_same_report(finished):
    before = (finished / "report.json").read_bytes()
    said = run("run", "splitmnist", *SMALL, "--methods", "gd,ewc", "--out", finished).stdout
    assert "0 cells computed" in said
    assert (finished / "report.json").read_bytes() == before


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(tmp_path):
    more = ["--methods", "gd,wpf", "--dry-run", "--out", tmp_path / "run"]
    said = run("run", "splitmnist", *SMALL, *more).stdout
    assert "2 cells, 0 finished, 2 to compute" in said and "MiB" in said
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_no_chosen_method_reads_is_named(tmp_path):
    words = ["run", "splitmnist", "--preset", "demo", "--dry-run", "--out", tmp_path / "run"]
    changes = ["--set", "perturbation=0.1", "--set", "lr=0.1", "--set", "exact_block=100"]
    said = run(*words, "--methods", "gd,exact", *changes).stderr
    assert said.count("no effect") == 1 and "perturbation=0.1" in said and "gd or exact" in said
    assert "no effect" not in run(*words, "--methods", "gd,exact,bootstrap", *changes).stderr


@pytest.mark.slow
def test_warnings_are_sentences_said_once(tmp_path):
    """At once and certain: a network whose Fisher information is 0 says so for every task."""
    methods = ["--methods", "ewc,ewc+wpf", "--set", "lr=1e4", "--out", tmp_path]
    result = run("run", "splitmnist", *SMALL, *methods)
    warned = [line for line in result.stderr.splitlines() if "Fisher information" in line]
    assert len(warned) == 1 and warned[0].startswith("orderless: warning (said once): ")
    assert "UserWarning" not in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["run", "splitmnist", "--preset", "demo", "--out", ""],
        ["tune", "splitmnist", "lr", "1", "--out="],
        ["expert", "train", "starpilot", "--out", ""],
        ["expert", "collect", "starpilot", "--out", ""],
        ["report", ""],
    ],
)
def test_an_empty_name_is_not_the_current_folder(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "the name is empty" in run(*words, code=2).output
    assert list(tmp_path.iterdir()) == []


def test_settings_are_told_for_a_method_a_benchmark_and_a_preset():
    said = run("settings", "gd").stdout
    assert "\n  lr=0.001\n      SGD's learning rate" in said and "particles" not in said
    assert "exact_features=2048" in run("settings", "splitmnist").stdout
    said = run("settings", "table1").stdout
    assert "\n  lr=0.003\n" in said and "\n  lr=0.01\n" in said  # of two benchmarks
    assert "levels=8,9,16" in run("settings", "gpu").stdout
    assert "did you mean 'table1'" in refused("settings", "tabel1")


@pytest.mark.slow
def test_parts_of_a_run_are_put_together_by_the_report(tmp_path):
    words = ["run", "splitmnist", *SMALL, "--methods", "gd,ewc,er", "--out", tmp_path]
    for part, count in (("1/2", 2), ("2/2", 1)):
        assert f"{count} cells computed" in run(*words, "--shard", part).stdout
        assert not (tmp_path / "report.html").exists()
    assert "0 cells computed" in run(*words).stdout and (tmp_path / "report.html").exists()
