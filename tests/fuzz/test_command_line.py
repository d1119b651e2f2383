"""Any words behind `orderless`: a result, help, or a sentence with exit code 2; no traceback."""

import subprocess
import sys

import pytest
import typer
from click.testing import CliRunner
from hypothesis import strategies as st
from tests.fuzz.cases import fuzz

from orderless.cli import main as cli
from orderless_lab.experiments import StoreError

pytestmark = pytest.mark.slow

# What would compute, download or take a look at this machine: the words are what is tested.
WORK = (
    *("audit.order_sensitivity", "cli.doctor.examine", "cli.run.draw_map"),
    *("rl.experts.ExpertTraining", "rl.experts.load_expert"),
    *("experiments.run_grid", "experiments.grid.count_cells", "experiments.tuning.sweep"),
    *("scenarios.fetch", "scenarios.check", "scenarios.files.find_files"),
)

VALUES = st.one_of(
    st.sampled_from(
        ["0", "1", "-1", "3", "1e9", "nan", "inf", "-inf", "99999999999999999999", "0x10", "", " "]
        + ["all", "gd", "gd,wpf", ",", "wpf,,x", "splitmnist", "splitcifar100", "demo"]
        + ["table1", "domain", "class", "cpu", "cuda", "auto", "local", "ray", "starpilot", "mnist"]
        + ["lr=1", "lr=nan", "lr", "=", "lr=1=2", "particles=0", "seed=9", "validation=2", "x=y"]
        + ["0-14", "3-1", "0-999999999999", "1,,2", "a-b", "-", "--", "-x", "--x", "~", "..", "/"]
        + ["/dev/null/x", "a" * 5000, "\x00", "\x1b[31m", "<b>", "[red]", "{}", "%s", "ä\u202e"]
        + ["json:loads", "nowhere:x", "os:path:x", ":", "a:", "127.0.0.1:1", "auto"]
    ),
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)


def commands(command, words=()):
    """(words, names of its options) for every command there is."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))
    options = [
        name for parameter in command.params for name in (*parameter.opts,) if name[0] == "-"
    ]
    yield words, options


APP = typer.main.get_command(cli.app)  # made once; typer's own runner makes it for every line
COMMANDS = list(commands(APP))


@st.composite
def lines(draw):
    run = [each for each in COMMANDS if each[0] == ("run",)]  # the one with the most to say
    words, options = draw(st.sampled_from(COMMANDS + 20 * run))
    line = [*words, *draw(st.lists(VALUES, max_size=3))]
    if words == ("run",) and draw(st.booleans()):  # far enough to reach the settings
        line = ["run", "splitmnist", "--preset", "demo"]
    for _ in range(draw(st.integers(0, 4))):
        line.append(draw(st.sampled_from(options or ["--help"])))
        if draw(st.integers(0, 9)):
            line.append(draw(VALUES))
    return line


def test_no_words_make_a_traceback(tmp_path, monkeypatch, record_property):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORDERLESS_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    reached = []

    def work(*arguments, **options):
        reached.append(arguments)
        raise StoreError("so far and no further")

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
for words in (["run", byte], ["report", byte], ["run", "splitmnist", "--set", byte]):
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
    assert result.stderr.count(b"orderless: ") == 3, result.stderr
