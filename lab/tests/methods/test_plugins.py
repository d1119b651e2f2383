"""A stranger's method is a first-class one: run, resumed, drawn and told like our own."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.cli.commands import refused, run
from typer.testing import CliRunner

from orderless.cli.main import app
from orderless_lab.methods import METHODS
from orderless_lab.methods.registry import SUPERVISED, load_plugins
from orderless_lab.suites import SupervisedSettings as Settings

TEMPERED = """
import orderless as ol
from orderless_lab.methods import Learner, Setup, method


@method("tempered", "weighted particles, half of which always count", weighted=True)
def tempered(setup: Setup) -> Learner:
    particles = setup.ensemble(setup.settings.particles)  # starts as every other method's do
    optimizer = setup.optimizer(particles)
    filter = ol.WeightedParticleFilter(particles, optimizer, min_ess=particles.n / 2)
    return Learner(setup.scenario, filter)
"""

WITH_SETTINGS = '''
from orderless_lab.methods import Learner, Settings, Setup, Style, method


class HalfSettings(Settings):
    """Of half."""

    half_rate: float = 0.5
    """What every learning rate is multiplied by."""


@method(
    "half", "descent at half speed", label="Half speed", style=Style("#123456", "p"),
    settings=HalfSettings,
)
def half(setup: Setup) -> Learner:
    filter = setup.descent()
    for group in filter.optimizer.param_groups:
        group["lr"] = group["lr"] * setup.own(HalfSettings).half_rate
    return setup.learner(filter)
'''

SMALL = ["iterations=4", "hidden=6", "particles=2", "batch_size=8"]
RUN = ["run", "splitmnist", "--preset", "demo", "--permutations", "2", "--device", "cpu"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two plug-ins; what they register is gone after the test."""
    (tmp_path / "tempered_plugin.py").write_text(TEMPERED)
    (tmp_path / "half_plugin.py").write_text(WITH_SETTINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, method in list(METHODS.items()):
        monkeypatch.setitem(METHODS, name, method)
    yield tmp_path
    for name in ("tempered", "half"):
        METHODS.pop(name, None)
        if name in SUPERVISED:
            SUPERVISED.remove(name)
        sys.modules.pop(f"{name}_plugin", None)


def sets(*assignments: str) -> list[str]:
    return [part for each in (*SMALL, *assignments) for part in ("--set", each)]


def records(folder: Path) -> list[dict]:
    return [json.loads(path.read_text())["cell"] for path in sorted((folder / "cells").iterdir())]


@pytest.mark.slow
def test_a_plugin_runs_and_its_label_is_in_table_page_and_record(here: Path) -> None:
    plugin = ["--plugin", "half_plugin", "--plugin", "tempered_plugin"]
    methods = ["--methods", "half,wpf,tempered", "--workers", "1"]
    arguments = [*RUN, *plugin, *methods, "--out", "run", *sets("half_rate=0.25")]
    assert "6 cells computed" in run(*arguments).output
    assert "Half speed" in (here / "run" / "report.tex").read_text()
    cells = records(here / "run")
    (first, *_) = (cell for cell in cells if cell["method"] == "half")
    assert first["settings"]["half_rate"] == 0.25
    assert "--plugin half_plugin" in first["command"]
    assert all("half_rate" not in c["settings"] for c in cells if c["method"] == "wpf")
    assert "0 cells computed" in run(*arguments).output
    # other settings of the plug-in's own are refused as ours are
    other = [*arguments[: -len(sets("half_rate=0.25"))], *sets("half_rate=0.5")]
    assert "half_rate=0.25, not 0.5: choose another --out" in refused(*other)
    # where nobody has registered it, the records tell
    METHODS.pop("half")
    run("report", "run")
    assert "Half speed" in (here / "run" / "report.tex").read_text()
    page = (here / "run" / "report.html").read_text()
    assert "Half speed" in page and "#123456" in page


@pytest.mark.slow
def test_other_processes_import_the_plugin_too(here: Path, warm_workers: None) -> None:
    arguments = [*RUN, "--plugin", "half_plugin", "--methods", "half", "--workers", "2"]
    assert "2 cells computed" in run(*arguments, "--out", "run", *sets()).stdout


def test_installed_packages_register_by_an_entry_point(here: Path, monkeypatch) -> None:
    point = EntryPoint("half", "half_plugin", "orderless_lab.methods")
    monkeypatch.setattr("orderless_lab.methods.registry.entry_points", lambda group: [point])
    sys.path.insert(0, str(here))
    load_plugins()
    assert METHODS["half"].label == "Half speed"
    assert Settings(half_rate=0.1).flat(METHODS["half"])["half_rate"] == 0.1
    assert "half_rate" not in Settings().flat(METHODS["gd"])


def test_settings_of_a_plugin_are_told_with_their_sentence(here: Path) -> None:
    said = run("settings", "half", "--plugin", "half_plugin").output
    assert "half: descent at half speed" in said
    assert "half_rate=0.5\n      What every learning rate is multiplied by." in said
    assert "lr=0.001\n      SGD's" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import surely_not_installed\n", "needs 'surely_not_installed', which is not installed"),
        ("import sys; sys.exit(0)\n", "cannot be imported: SystemExit: 0"),
        (WITH_SETTINGS.replace("half_rate", "lr"), "two settings are called lr"),
    ],
)
def test_a_plugin_that_does_not_load_is_a_sentence(here: Path, text: str, words: str) -> None:
    (here / "half_plugin.py").write_text(text)
    assert words in refused(*RUN, "--plugin", "half_plugin", "--methods", "half")


def test_a_fault_of_a_plugin_keeps_its_traceback(here: Path) -> None:
    (here / "half_plugin.py").write_text(
        WITH_SETTINGS.replace("filter = setup", "[].pop() or setup")
    )
    arguments = [*RUN, "--plugin", "half_plugin", "--methods", "half", "--workers", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", "run", *sets()])
    assert isinstance(result.exception, IndexError) and "pop from empty list" in str(
        result.exception
    )
