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
        ["0", "1", "-1", "1e9", "nan", "inf", "99999999999999999999", "0x10", "", " ", "auto"]
        + ["relu", "linear", "-", "--", "-x", "--x", "~", "..", "/", "/dev/null/x", "a" * 5000]
        + [
            "\x00",
            "\x1b[31m",
            "<b>",
            "[red]",
            "{}",
            "%s",
            "ä\u202e",
            "json:loads",
            "nowhere:x",
            ":",
        ]
    ),
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)
APP = typer.main.get_command(cli.app)  # made once; typer's own runner makes it for every line


@st.composite
def lines(draw):
    name = draw(st.sampled_from(COMMANDS))
    options = [text for parameter in APP.commands[name].params for text in parameter.opts]
    options = [text for text in options if text.startswith("-")]
    line = [name, *draw(st.lists(VALUES, max_size=3))]
    if name == "fit":  # with what it needs
        line = [name, "--data", draw(VALUES), "--out", draw(VALUES)]
    for _ in range(draw(st.integers(0, 4))):
        line.append(draw(st.sampled_from(options or ["--help"])))
        if draw(st.integers(0, 9)):
            line.append(draw(VALUES))
    return line


def test_no_words_make_a_traceback(tmp_path, monkeypatch, record_property):
    monkeypatch.chdir(tmp_path)
    reached = []

    def work(*arguments, **options):
        reached.append(arguments)
        raise UserError("so far and no further")

    for name in WORK:
        monkeypatch.setattr(f"orderless.{name}", work)
    runner = CliRunner()

    def check(line):
        result = runner.invoke(APP, line)
        assert result.exception is None or isinstance(result.exception, SystemExit), line
        assert result.exit_code in (0, 1, 2), line
        assert "Traceback" not in result.output

    fuzz(record_property, "command lines", 500, check, lines())
    assert len(reached) > 20  # or the words were all refused too early
    assert list(tmp_path.rglob("*")) == []  # and what is refused leaves nothing behind


def test_words_that_are_no_text_are_refused_too():
    """As a shell passes on a byte that is not UTF-8."""
    code = """
import sys
from orderless.cli import app
byte = sys.argv[1]
for words in (["predict", byte, "--data", byte], ["audit", byte, "--tasks", byte]):
    sys.argv[1:] = words
    try:
        app()
    except SystemExit as end:
        assert end.code == 2, end.code
    else:
        raise AssertionError(words)
"""
    result = subprocess.run([sys.executable, "-c", code, b"\xff"], capture_output=True)
    assert result.returncode == 0 and b"Traceback" not in result.stderr, result.stderr
    assert result.stderr.count(b"orderless: ") == 2, result.stderr
