"""What the shell offers, asked as the shell asks."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from orderless.cli.main import EXAMPLES, app
from orderless_lab.commands import EXAMPLES as OF_THE_LAB
from orderless_lab.methods import METHODS


def offered(line: str) -> list[str]:
    words = f"orderless {line}"
    count = len(words.split()) - (0 if line.endswith(" ") else 1)
    asked = {"_ORDERLESS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    result = CliRunner().invoke(app, [], env=asked, prog_name="orderless")
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def test_benchmarks_are_offered() -> None:
    assert {"splitmnist", "splitcifar100"} <= set(offered("run spl"))


def test_methods_are_offered_one_after_another() -> None:
    assert set(METHODS) <= set(offered("run splitmnist --methods "))
    more = offered("run splitmnist --methods ewc,wpf,e")
    assert "ewc,wpf,er" in more and "ewc,wpf,ewc" not in more
    assert all(text.startswith("ewc,wpf,e") for text in more)


def test_values_of_options_are_offered() -> None:
    assert {"demo", "table1", "own", "gpu"} <= set(offered("run splitmnist --preset "))
    assert offered("run splitmnist --preset dem") == ["demo"]
    assert offered("tune splitmnist lr 1 --scenario d") == ["domain"]
    assert offered("run splitmnist --device c") == ["cpu", "cuda"]
    assert offered("data fetch c") == ["cifar100"]
    assert "lr=" in offered("run splitmnist --set l")


def test_commands_are_offered() -> None:
    assert offered("do") == ["doctor"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_the_shell_is_shown(shell: str, monkeypatch) -> None:
    # the shell is named, not looked for: tests may run in any
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = CliRunner().invoke(app, ["--show-completion", shell], prog_name="orderless")
    assert result.exit_code == 0 and "_ORDERLESS_COMPLETE" in result.stdout


def test_help_has_an_example_of_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    callbacks = [(each.name, each.callback.__name__) for each in app.registered_commands]
    commands = {name or called.replace("_", "-") for name, called in callbacks}
    commands |= {group.name for group in app.registered_groups}
    assert {example.split()[0] for example in (*EXAMPLES, *OF_THE_LAB)} == commands
    for example in EXAMPLES:
        assert f"orderless {example}" in result.stdout


def test_what_stands_in_brackets_is_shown() -> None:
    result = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"})
    assert "[runs/BENCHMARK-PRESET]" in result.stdout
