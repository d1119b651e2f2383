"""The ProcGen benchmarks and experts from the command line, on the real games."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from lab.tests.toys import GAME, tiny_expert
from tests.cli.commands import refused, run

from orderless_lab.runs.store import read_cell

pytestmark = pytest.mark.slow

SMALL = ["--preset", "demo", "--particles", "2", "--workers", "1", "--device", "cpu"]
LIFELONG = ["run", "procgen-lifelong", *SMALL, "--levels", "0,3", "--steps-per-level", "128"]
LIFELONG += ["--set", "envs=4", "--set", "rollout=32", "--set", "minibatches=2"]
CLONING = ["run", "procgen-bc", *SMALL, "--levels", "0,3", "--set", "transitions=64"]
CLONING += ["--set", "batch_size=16", "--set", "episodes=2"]


def test_lifelong_learning_from_command_to_report(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [*LIFELONG, "--game", "fruitbot", "--methods", "ppo,ppo+wpf", "--out", out]
    assert "4 cells computed" in run(*command).stdout  # two cyclic orders
    records = [read_cell(path) for path in sorted(out.glob("cells/*.json"))]
    assert {record["variant"] for record in records} == {"fruitbot"}
    assert {tuple(record["order"]) for record in records} == {(0, 1), (1, 0)}
    assert records[0]["task_names"] == ["level 0", "level 3"]
    page = (out / "report.html").read_text()
    assert ">episode return<" in page and "level 3" in page
    table = (out / "report.md").read_text()
    assert "ppo+wpf" in table and "norm. var." not in table
    summary = json.loads(run("report", out, "--json").stdout)
    assert summary["unit"] == "return"
    assert summary["methods"]["ppo"]["normalized_variance"] is None
    assert "--game fruitbot" in summary["command"] and "levels=0,3" in summary["command"]
    assert "0 cells computed" in run(*command).stdout


def test_cloning_from_expert_to_report(tmp_path: Path) -> None:
    expert = tiny_expert(tmp_path)
    out, data = tmp_path / "run", tmp_path / "data"
    data.mkdir()
    command = [*CLONING, "--set", f"expert={expert}", "--data-dir", data, "--out", out]
    command += ["--permutations", "1", "--methods", "bc,bc+wpf", "--game", GAME]
    assert "2 cells, 0 finished, 2 to compute" in run(*command, "--dry-run").stdout
    assert not out.exists() and not list(data.iterdir())
    assert "2 cells computed" in run(*command).stdout
    folders = sorted(data.glob("procgen/*/*"))
    assert [folder.name for folder in folders] == ["level0-64", "level3-64"]
    summary = json.loads(run("report", out, "--json").stdout)
    assert summary["methods"]["bc+wpf"]["average_probs"] is not None
    assert summary["methods"]["bc"]["forgetting"] is not None

    (folders[1] / "observations.npy").write_bytes(b"")
    for path in out.glob("cells/*.json"):
        path.unlink()
    assert "level3-64 is damaged" in refused(*command)


def test_an_expert_is_trained_and_collects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = ["expert", "train", "fruitbot", "--network", "compact", "--envs", "2", "--levels", "3"]
    train += ["--episodes", "1", "--device", "cpu", "--out", tmp_path]
    said = run(*train, "--steps", "500").stdout
    assert "512 steps" in said and "at random" in said
    path = tmp_path / "fruitbot.safetensors"
    assert path.exists()
    longer = run(*train, "--steps", "1000").stdout  # goes on from the checkpoint
    assert "1024 steps (2 copies x 256 in float32)" in longer
    sentence = refused(*train, "--steps", "1000", "--seed", "1")
    assert "holds a checkpoint, but this training has seed=0, not 1" in sentence

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where runs look for them
    collect = ["expert", "collect", "fruitbot", "--expert", path, "--levels", "0-1"]
    collect += ["--transitions", "30", "--device", "cpu"]
    first = run(*collect).stdout
    folders = sorted((tmp_path / "cache/orderless/procgen").glob("*/*"))
    assert [folder.name for folder in folders] == ["level0-30", "level1-30"]
    frames = folders[0] / "observations.npy"
    before = frames.read_bytes()
    shutil.rmtree(folders[0])
    assert run(*collect).stdout == first
    assert frames.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "procgen-lifelong", "--levels", "two"], "levels must look like"),
        (["run", "procgen-lifelong", "--methods", "wpf"], "'wpf'"),
        (["run", "procgen-bc", "--set", "expert=nowhere"], "there is no expert for starpilot"),
        (["expert", "train", "pong"], "'pong'"),
        (["expert", "train", "starpilot", "--rollout", "0"], "rollout must"),
        (["expert", "collect", "starpilot", "--expert", "nowhere"], "there is no expert"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(*arguments)
