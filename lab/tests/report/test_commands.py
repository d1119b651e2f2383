"""What `joined` writes is parsed by the command line itself and asks for the same cells."""

from __future__ import annotations

from orderless_lab.experiments.grid import Grid
from orderless_lab.methods.presets import find_preset
from orderless_lab.report.commands import joined

NAMES = ("wpf", "gd", "ewc", "joint")


def grid(methods: tuple[str, ...], permutations: int, seeds: int, preset: str = "table1") -> Grid:
    return Grid(
        "splitmnist",
        "domain",
        preset,
        methods,
        permutations,
        seeds,
        find_preset(preset, "splitmnist"),
    )


def test_goes_at_one_table_become_one_command() -> None:
    goes = [grid(("gd", "ewc"), 5, 1), grid(("wpf",), 5, 2), grid(("gd", "joint"), 3, 1)]
    whole = grid(NAMES, 5, 2)
    assert joined((go.command() for go in goes), NAMES) == whole.command()


def test_methods_without_a_finished_cell_are_not_asked_for() -> None:
    commands = [grid(NAMES, 1, 1).command(), grid(("gd", "ewc"), 1, 1).command()]
    assert joined(commands, ("gd", "ewc")) == commands[1]


def test_different_settings_stay_apart() -> None:
    commands = [grid(NAMES, 1, 1).command(), grid(NAMES, 1, 1, "table1-low").command()]
    assert joined(commands, NAMES) == " && ".join(commands)


def test_commands_of_another_form_are_kept_as_they_are() -> None:
    for command in ("my study 'a && b", "", "orderless run splitmnist --seeds", "a {} --seeds x"):
        assert joined([command], NAMES) == command
        assert joined([command, command], NAMES) == command
