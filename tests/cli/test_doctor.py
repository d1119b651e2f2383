"""`orderless doctor`: what it finds, and that nothing that is broken breaks it."""

from __future__ import annotations

import numpy
import pytest
import torch
from tests.cli.commands import run

from orderless import __version__
from orderless.cli import doctor


def found(what: str) -> tuple[str, str]:
    findings = [*doctor.examine(), doctor.device()]
    (finding,) = [(status, text) for status, name, text in findings if name == what]
    return finding


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the installed distribution declares; a test adds to it."""
    declares = ["torch>=2.1", "numpy>=1.0", 'pytest; extra == "dev"']
    monkeypatch.setattr(doctor, "requires", lambda name: declares)
    return declares


def test_a_line_for_everything(declared) -> None:
    lines = run("doctor").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", name] for name in ("orderless", "torch", "numpy", "device")
    ]
    assert __version__ in lines[0] and torch.__version__ in lines[1]
    assert numpy.__version__ in lines[2]


def test_a_missing_extra_comes_with_the_command_that_gets_it(declared) -> None:
    declared += ['rich>=1; extra == "report"', "surely-not-installed>=2 ; extra == 'report'"]
    assert found("rich [report]")[0] == "ok"
    status, text = found("surely-not-installed [report]")
    assert status == "missing" and "pip install 'orderless[report]'" in text
    run("doctor")


def test_a_package_that_is_too_old_or_missing_is_broken_and_the_command_fails(declared) -> None:
    declared += ["typer>=99.1", "surely-not-installed"]
    assert found("typer")[0] == found("surely-not-installed")[0] == "broken"
    assert "needs 99.1 or newer: pip install -U typer" in found("typer")[1]
    run("doctor", code=1)


def test_a_gpu_is_named_with_its_memory_or_said_to_be_broken(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * 2**30, 24 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A card")
    real = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device=None: real(*size))
    assert found("device") == ("ok", "A card, 24 GiB, 10 GiB free")

    def failing(*size, device=None):
        raise RuntimeError("CUDA error: no kernel image\nmore")

    monkeypatch.setattr(torch, "ones", failing)
    assert found("device") == ("broken", "a GPU that does not work: CUDA error: no kernel image")
