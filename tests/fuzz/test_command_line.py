"""Any words behind `orderless`: a result, help, or a sentence with exit code 2; no traceback."""

import subprocess
import sys

import pytest
import typer
from click.testing import CliRunner
from hypothesis import strategies as st
from tests.fuzz.cases import fuzz

from orderless.cli import main as cli
from orderless.errors import UserError

pytestmark = pytest.mark.slow

COMMANDS = ("fit", "predict", "merge", "forget", "verify-deletion", "audit", "doctor")
# What would compute or take a look at this machine: the words are what is tested.
WORK = ("audit.order_sensitivity", "cli.doctor.examine", "heads.files.find_files")
VALUES = st.one_of(
    st.sampled_from(
        [
            "0",
            "-1",
            "1e9",
            "nan",
            "99999999999999999999",
            "relu",
            "linear",
            "-",
            "--",
            "--x",
            "~",
            "..",
            "/",
            ":",
        ]
    ),
    st.sampled_from(["", "a" * 5000, "\x00", "\x1b[31m", "[red]", "%s", "ä\u202e", "json:loads"]),
    st.text(max_size=12),
)
APP = typer.main.get_command(cli.app)  # made once; typer's own runner makes it for every line


@st.composite
def lines(draw):
    name = draw(st.sampled_from(COMMANDS))
    options = [text for parameter in APP.commands[name].params for text in parameter.opts]
    line = [name, *draw(st.lists(VALUES, max_size=3))]
    if name == "fit":  # with what it needs
        line = [name, "--data", draw(VALUES), "--out", draw(VALUES)]
    for _ in range(draw(st.integers(0, 4))):
        line += [draw(st.sampled_from([*options, "--help"])), draw(VALUES)]
    return line


def test_no_words_make_a_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reached = []

    def work(*arguments, **options):
        reached.append(arguments)
        raise UserError("so far and no further")

    for name in WORK:
        monkeypatch.setattr(f"orderless.{name}", work)

    def check(line):
        result = CliRunner().invoke(APP, line)
        assert result.exception is None or isinstance(result.exception, SystemExit), line
        assert result.exit_code in (0, 1, 2) and "Traceback" not in result.output, line

    fuzz(400, check, lines())
    assert len(reached) > 20  # or the words were all refused too early
    assert list(tmp_path.rglob("*")) == []  # and what is refused leaves nothing behind


def test_words_that_are_no_text_are_refused_too():
    """As a shell passes on a byte that is not UTF-8."""
    command = [sys.executable, "-m", "orderless", "predict", b"\xff", "--data", b"\xff"]
    result = subprocess.run(command, capture_output=True)
    assert result.returncode == 2 and result.stderr.startswith(b"orderless: "), result.stderr
