"""`orderless doctor`: what it finds, and that nothing that is broken breaks it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import numpy
import pytest
import torch
from typer.testing import CliRunner

from orderless import __version__
from orderless.cli import doctor as doctor_command
from orderless.cli.doctor import EXTRAS, Finding, examine
from orderless.cli.main import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LAB = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> list[str]:
    return [re.match(r"[\w-]+", each).group() for each in requirements]  # type: ignore[union-attr]


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """ProcGen's process does nothing."""
    monkeypatch.setattr(doctor_command, "PLAY", "pass")


def found(what: str, **options) -> Finding:
    (finding,) = [each for each in examine(**options) if each.what == what]
    return finding


def test_extras_and_versions_are_those_of_the_package() -> None:
    optional = LAB["optional-dependencies"] | PROJECT["optional-dependencies"]
    for extra, (packages, _) in EXTRAS.items():
        assert names(optional[extra]) == list(packages)
    assert set(optional) - set(EXTRAS) == {"docs", "dev", "all"}  # not for users
    needed = dict(re.match(r"(\w+)>=(.*)", each).groups() for each in PROJECT["dependencies"])  # type: ignore[union-attr]
    wanted = {name: ".".join(map(str, least)) for name, least in doctor_command.CORE.items()}
    assert wanted == needed


def test_a_line_for_everything_and_exit_code_0(idle, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    said = {line.split()[1]: line for line in lines}
    assert f"{__version__}, Python {sys.version.split()[0]}" in said["orderless"]
    assert torch.__version__ in said["torch"] and numpy.__version__ in said["numpy"]
    assert {"[cli]", "[sklearn]", "[procgen]", "[ray]"} <= set(said)
    assert {"device", "mnist", "cifar100", "mnist-5k", "ProcGen", "runs/"} <= set(said)
    assert all(line.split()[0] in ("ok", "missing", "broken") for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_comes_with_the_command_that_gets_it(idle, monkeypatch) -> None:
    monkeypatch.setitem(EXTRAS, "report", (("matplotlib", "surely-not-installed"), "figures"))
    finding = found("[report]")
    assert finding.status == "missing" and not finding.needed
    assert "surely-not-installed not installed: pip install 'orderless[report]'" in finding.text


def test_a_package_that_is_too_old_is_broken_and_the_command_fails(idle, monkeypatch) -> None:
    monkeypatch.setitem(doctor_command.CORE, "numpy", (99, 1))
    finding = found("numpy")
    assert finding.status == "broken" and "needs 99.1 or newer" in finding.text
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1


@pytest.mark.parametrize(
    ("play", "sentence"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crashed while starting (SIGSEGV)"),
        ("import time; time.sleep(60)", "did not start within 0.5 seconds"),
        ("raise ImportError('ProcGen needs Qt 5')", "ProcGen needs Qt 5"),
    ],
)
def test_procgen_that_does_not_start_is_a_sentence(play, sentence, monkeypatch) -> None:
    monkeypatch.setattr(doctor_command, "PLAY", play)
    finding = found("ProcGen", patience=0.5 if "sleep" in play else 60.0)
    assert (finding.status, finding.text, finding.needed) == ("broken", sentence, False)


@pytest.mark.slow
def test_procgen_starts() -> None:
    assert found("ProcGen") == Finding("ProcGen", "ok", "starts")


def test_data_sets_are_found_or_fetched(idle, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("ORDERLESS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert found("mnist").text == "not found: `orderless data fetch mnist` gets it"
    assert found("mnist-5k").text.endswith("mnist_5k.csv.gz")


def test_a_folder_that_cannot_be_written_fails(idle) -> None:
    finding = found("/dev/null/runs/", out=Path("/dev/null/runs"))
    assert finding.status == "broken" and finding.needed and "choose another --out" in finding.text
    assert CliRunner().invoke(app, ["doctor", "--out", "/dev/null/runs"]).exit_code == 1


def test_a_gpu_is_named_with_its_memory(idle, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * 2**30, 24 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A card")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    real = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device=None: real(*size))
    assert found("device").text == "A card, 24 GiB, 10 GiB free"

    def failing(*size, device=None):
        raise RuntimeError("CUDA error: no kernel image\nmore")

    monkeypatch.setattr(torch, "ones", failing)
    broken = found("device")
    assert broken.status == "broken" and "(CUDA error: no kernel image): use --device cpu" in (
        broken.text
    )
