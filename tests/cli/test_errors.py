"""What becomes of errors at the command line, and of the lab's commands where there is no lab."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
import typer
from tests.cli.commands import run
from typer.testing import CliRunner

from orderless import __version__
from orderless.cli.errors import problems_as_sentences
from orderless.errors import DataError, WriteError


def ended_by(error: BaseException, **environment: str):
    """The result of a command that ends with this error."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    @problems_as_sentences("a smaller --count")
    def command() -> None:
        raise error

    return CliRunner().invoke(app, [], env=environment)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DataError("a\x1b[31mb.csv is damaged"), "a\\x1b[31mb.csv is damaged"),
        (WriteError(errno.ENOSPC, "No space", "x.csv"), "cannot write x.csv: No space"),
        (MemoryError(), "out of memory: use a smaller --count"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
            "out of memory: use a smaller --count",
        ),
    ],
)
def test_our_own_errors_are_one_sentence(error, text) -> None:
    result = ended_by(error)
    assert (result.exit_code, result.stderr) == (2, f"orderless: {text}\n")
    assert isinstance(ended_by(error, ORDERLESS_TRACEBACK="1").exception, type(error))


@pytest.mark.parametrize("error", [ValueError("a bug"), RuntimeError("a bug"), OSError()])
def test_any_other_error_keeps_its_traceback(error) -> None:
    assert ended_by(error).exception is error


def test_whoever_is_stopped_says_so_with_the_signal() -> None:
    result = ended_by(KeyboardInterrupt())
    assert result.exit_code == 128 + signal.SIGINT
    assert result.stderr.startswith("orderless: stopped")


def python(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment})


WITHOUT_LAB = """
import importlib.metadata as metadata
import sys
sys.modules["orderless_lab"] = None
metadata.entry_points = lambda **which: []
from orderless.cli import app
app()
"""


def test_without_the_lab_its_commands_name_what_to_install() -> None:
    result = python(WITHOUT_LAB, "run", "splitmnist", "--preset", "demo")
    assert result.returncode == 2
    assert result.stderr.count(b"\n") == 1 and b"orderless-lab: pip install ./lab" in result.stderr


def test_without_the_lab_the_library_has_its_own_commands() -> None:
    result = python(WITHOUT_LAB, "--help")
    assert result.returncode == 0, result.stderr
    assert b"verify-deletion" in result.stdout and b"splitmnist" not in result.stdout


def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path) -> None:
    missing = tmp_path / "Stra\u00dfe.csv"
    code = "from orderless.cli import app; app()"
    words = ["fit", "--data", str(missing), "--out", str(tmp_path / "x.st")]
    result = python(code, *words, PYTHONIOENCODING="ascii")
    assert result.returncode == 2, result.stderr
    assert b"Stra\\xdfe.csv is not a file or folder" in result.stderr


def test_a_closed_pipe_ends_a_command_quietly() -> None:
    command = [sys.executable, "-m", "orderless", "doctor"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    running.stdout.close()
    with running.stderr as stream:
        assert stream.read() == b""
    assert running.wait() == 1


def test_wrong_words_are_refused_with_what_is_meant(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Did you mean 'predict'" in run("predct", code=2).stderr
    assert "--count" in run("fit", "--data", ".", "--out", "x", "--count", "two", code=2).stderr
    assert "the name is empty" in run("fit", "--data", ".", "--out", "", code=2).stderr
    assert not list(tmp_path.iterdir())


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"orderless {__version__}\n"
