"""Options that several commands of the lab share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from orderless.cli.options import option, word

from ..methods.presets import POLICY_PRESETS, PRESETS
from ..rl.games import GAMES
from . import completion

if TYPE_CHECKING:
    import torch

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
Workers = Annotated[int | None, option("Worker processes, one thread each [one per core; GPU: 1].")]
CheckpointEvery = Annotated[float, option("Seconds between checkpoints.")]


def as_typed() -> str:
    """The command line, to be recorded with the results."""
    return shlex.join(["orderless", *sys.argv[1:]])


def find_device(name: str) -> torch.device:
    """The device that a `Device` names on this machine."""
    import torch

    from orderless import ensemble

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    return ensemble.find_device(name)
