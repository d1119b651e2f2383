"""`orderless audit`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orderless.cli.errors import Terminated
from orderless.cli.main import app

HERE = Path(__file__).parent


def run(*arguments: str):
    return CliRunner().invoke(app, ["audit", *arguments])


FEW = ["--tasks", "tests.audit.toys:few", "--orders", "2", "--seeds", "2"]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)  # modules of the current folder are found


@pytest.mark.slow
def test_the_table_is_printed_and_the_report_written(tmp_path: Path) -> None:
    beside = ["--compare", "tests.audit.toys:Sums", "--out", str(tmp_path / "report")]
    result = run("tests.audit.toys:LastTask", *FEW, *beside)
    assert result.exit_code == 0, result.output
    assert "LastTask is sensitive to the order" in result.stdout
    written = json.loads((tmp_path / "report" / "report.json").read_text())
    assert written["learner"]["ignores_seed"] and written["seeds"] == 2
    assert "Sums does not depend on the order" in result.stdout
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Order sensitivity of LastTask" in page
    for name in ("report.html", "report.json"):
        assert f"wrote {tmp_path / 'report' / name}" in result.stdout


@pytest.mark.slow
def test_json_is_printed_and_nothing_else(tmp_path: Path) -> None:
    arguments = [*FEW, "--out", str(tmp_path), "--json"]
    result = run("tests.audit.toys:make_last_task", *arguments)
    assert json.loads(result.stdout)["comparisons"] == []


def test_two_rates_give_the_slope() -> None:
    result = run("tests.audit.toys:make_sgd_at", *FEW, "--rates", "0.02,0.01")
    assert result.exit_code == 0, result.output
    assert "falls with the rate to the power" in result.stdout


@pytest.mark.slow
def test_a_stopped_audit_says_how_to_go_on_and_goes_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tests.audit.toys.StopsOnce.made", 0)
    stopped = run("tests.audit.toys:StopsOnce", *FEW, "--out", str(tmp_path))
    assert stopped.exit_code == 130
    assert (
        stopped.stderr.strip() == "orderless: stopped; the same command resumes from what was saved"
    )
    assert (tmp_path / "runs.jsonl").read_text().count("StopsOnce seed") == 2
    result = run("tests.audit.toys:StopsOnce", *FEW, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    from tests.audit.toys import StopsOnce

    assert StopsOnce.made == 6  # three, the one that was stopped, and the two that were missing


def test_an_audit_that_keeps_nothing_says_how_to_keep(monkeypatch) -> None:
    monkeypatch.setattr("tests.audit.toys.StopsOnce.made", 0)
    stopped = run("tests.audit.toys:StopsOnce", *FEW)
    assert stopped.exit_code == 130, stopped.output
    assert "nothing was saved: with --out DIR an audit can be resumed" in stopped.stderr


def test_an_audit_that_a_scheduler_stops_exits_with_its_signal(monkeypatch) -> None:
    monkeypatch.setattr("tests.audit.toys.StopsOnce.made", 0)
    monkeypatch.setattr("tests.audit.toys.StopsOnce.stop", Terminated)
    stopped = run("tests.audit.toys:StopsOnce", *FEW)
    assert stopped.exit_code == 128 + signal.SIGTERM, stopped.output


@pytest.mark.slow
def test_runs_of_a_changed_module_are_refused(tmp_path: Path, monkeypatch) -> None:
    module = tmp_path / "my_learner_module.py"
    module.write_text("from tests.audit.toys import LastTask\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    arguments = ["my_learner_module:LastTask", *FEW, "--out", str(tmp_path / "audit")]
    assert run(*arguments).exit_code == 0
    assert run(*arguments).exit_code == 0
    module.write_text("from tests.audit.toys import Sums as LastTask\n")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "holds runs of another version of the learner: choose another folder" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:make", "--tasks", "tests.audit.toys:tasks"], "no module 'nowhere'"),
        (["tests.audit.toys:nothing", "--tasks", "tests.audit.toys:tasks"], "has no 'nothing'"),
        (["toys", "--tasks", "tests.audit.toys:tasks"], "given as module:name"),
        (["tests.audit.toys:LastTask", "--tasks", "tests.audit.toys:numbers"], "list of int"),
        (
            ["tests.audit.toys:Mute", "--tasks", "tests.audit.toys:few", "--orders", "2"],
            "no method predict",
        ),
        (
            ["tests.audit.toys:Stumbling", "--tasks", "tests.audit.toys:few", "--orders", "2"],
            "RuntimeError: no luck",
        ),
        (
            ["tests.audit.toys:LastTask", "--tasks", "tests.audit.toys:broken", "--orders", "2"],
            "not finite",
        ),
        (["tests.audit.toys:LastTask", "--tasks", "tests.audit.toys:single"], "at least two tasks"),
        (["tests.audit.toys:LastTask", *FEW, "--compare", "rb"], "given as module:name"),
        (["tests.audit.toys:LastTask", *FEW, "--rates", "a"], "two numbers such as 0.1,0.05"),
        (["tests.audit.toys:LastTask", *FEW, "--rates", "0.1"], "two different learning rates"),
    ],
)
def test_mistakes_are_sentences_with_exit_code_2(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("orderless: ") and words in lines[0]


def test_a_module_that_does_not_import_is_named(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "needs_more.py").write_text("import surely_not_installed\n")
    (tmp_path / "stumbles.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    assert "needs 'surely_not_installed'" in run("needs_more:a", "--tasks", "b:c").stderr
    # a fault of the module keeps its traceback
    assert isinstance(run("stumbles:a", "--tasks", "b:c").exception, ZeroDivisionError)
