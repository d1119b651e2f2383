"""`orderless audit`: what it prints, keeps and refuses."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.audit import toys
from typer.testing import CliRunner

from orderless.cli.errors import Terminated
from orderless.cli.main import app

FEW = ["--tasks", "tests.audit.toys:few", "--orders", "2", "--seeds", "2"]
STOPS = ["tests.audit.toys:stops", *FEW]


def run(*arguments: str):
    return CliRunner().invoke(app, ["audit", *arguments])


def test_the_report_is_printed_as_text_or_json() -> None:
    result = run("tests.audit.toys:make_sgd", *FEW, "--rates", "0.02,0.01", "--search", "2")
    assert result.exit_code == 0, result.output
    assert "Order sensitivity of make_sgd" in result.stdout and "slope" in result.stdout
    written = json.loads(run("tests.audit.toys:LastTask", *FEW, "--json").stdout)
    assert written["name"] == "LastTask" and written["verdict"] == "sensitive"


def test_a_stopped_audit_says_how_to_go_on_and_goes_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(toys, "stops", toys.Stopping(limit=2))
    stopped = run(*STOPS, "--keep", str(tmp_path / "runs"))
    assert stopped.exit_code == 130
    assert "the same command resumes from what was saved" in stopped.stderr
    monkeypatch.setattr(toys, "stops", toys.Stopping())
    assert run(*STOPS, "--keep", str(tmp_path / "runs")).exit_code == 0
    assert toys.stops.made == 2


def test_an_audit_that_keeps_nothing_says_how_to_keep(monkeypatch) -> None:
    monkeypatch.setattr(toys, "stops", toys.Stopping(limit=2, stop=Terminated))
    stopped = run(*STOPS)
    assert stopped.exit_code == 128 + signal.SIGTERM  # as a scheduler expects
    assert "with --keep FILE an audit can be resumed" in stopped.stderr


@pytest.mark.slow
def test_runs_of_a_changed_module_are_made_again(tmp_path: Path, monkeypatch) -> None:
    module = tmp_path / "my_learner_module.py"
    module.write_text("from tests.audit.toys import stops as make_learner\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toys, "stops", toys.Stopping())
    arguments = ["my_learner_module:make_learner", *FEW, "--keep", str(tmp_path / "runs")]
    for text, made in (("", 4), ("", 4), ("# changed\n", 8)):
        module.write_text(module.read_text() + text)
        assert run(*arguments).exit_code == 0
        assert toys.stops.made == made


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tests.audit.toys:nothing", "--tasks", "tests.audit.toys:tasks"], "has no 'nothing'"),
        (["tests.audit.toys:LastTask", "--tasks", "tests.audit.toys:numbers"], "list of ol.Task"),
        (["tests.audit.toys:Mute", *FEW], "got a Mute"),
        (["tests.audit.toys:LastTask", *FEW, "--seeds", "1"], "seeds must be"),
        (["tests.audit.toys:LastTask", *FEW, "--rates", "a"], "two numbers such as 0.1,0.05"),
        (["tests.audit.toys:LastTask", *FEW, "--rates", "0.1"], "two different learning rates"),
        (["tests.audit.toys:LastTask", *FEW, "--keep", __file__], "not written by orderless.save"),
    ],
)
def test_mistakes_are_sentences_with_exit_code_2(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("orderless: ") and words in lines[0]


def test_a_fault_of_the_learner_keeps_its_traceback() -> None:
    assert "no luck" in str(run("tests.audit.toys:Stumbling", *FEW).exception)
