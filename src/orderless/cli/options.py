"""Options that several commands share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderless_lab.commands import completion
from orderless_lab.commands.completion import Completion
from orderless_lab.methods.presets import POLICY_PRESETS, PRESETS
from orderless_lab.rl.games import GAMES

if TYPE_CHECKING:
    import torch


def option(help: str, offered: Completion | None = None, name: str = "", **more: Any) -> Any:
    """An option with its help and completion; `name` if it differs from the parameter's."""
    return typer.Option(*filter(None, [name]), help=help, autocompletion=offered, **more)


def word(help: str, offered: Completion | None = None, **more: Any) -> Any:
    """An argument with its help and completion."""
    return typer.Argument(help=help, autocompletion=offered, **more)


def named(text: str) -> Path:
    """Parse a path; refuse an empty text, which `Path` takes for the current folder."""
    if not text:
        raise typer.BadParameter("the name is empty: give . for the current folder")
    return Path(text)


PATH: Any = {"parser": named, "metavar": "PATH"}

DataDir = Annotated[
    Path | None, option("Folder with data sets [$ORDERLESS_DATA].", exists=True, file_okay=False)
]
Device = Annotated[str, option("auto, cpu or cuda.", completion.devices)]
SCENARIOS = "domain, task or class [domain; intents: class]."
Kind = Annotated[str | None, option(SCENARIOS, completion.scenarios)]
CHANGE = "Change a setting: key=value. `orderless settings` lists them."
Changes = Annotated[list[str] | None, option(CHANGE, completion.settings, "--set")]
PLAYED = f"ProcGen: {', '.join(GAMES)} or all [{GAMES[0]}]."
Game = Annotated[str | None, option(PLAYED, completion.games)]
OneGame = Annotated[str, word(", ".join(GAMES))]
CHOICES = f"{', '.join(PRESETS)} [table1]; ProcGen: {', '.join(POLICY_PRESETS)} [gpu]."
Preset = Annotated[str | None, option(CHOICES, completion.presets)]
Plugin = Annotated[list[str] | None, option("A module of your own that registers methods.")]
CheckpointEvery = Annotated[float, option("Seconds between checkpoints.")]
Workers = Annotated[int | None, option("Worker processes, one thread each [one per core; GPU: 1].")]
Json = Annotated[bool, option("Print JSON and nothing else.", name="--json")]


def as_typed() -> str:
    """The command line, to be recorded with the results."""
    return shlex.join(["orderless", *sys.argv[1:]])


def find_device(name: str) -> torch.device:
    """The device that a `Device` names on this machine."""
    import torch

    from .. import ensemble

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    return ensemble.find_device(name)
