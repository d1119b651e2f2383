"""The options that commands take: what each means, and what the shell offers for it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..methods.presets import POLICY_PRESETS, PRESETS
from ..rl.games import GAMES
from ..scenarios import DATASETS
from . import completion
from .completion import Completion

if TYPE_CHECKING:
    import torch


def option(help: str, offered: Completion | None = None, name: str = "", **more: Any) -> Any:
    """What `--name` means, and what the shell offers; `name` where the parameter's is another."""
    return typer.Option(*filter(None, [name]), help=help, autocompletion=offered, **more)


def word(help: str, offered: Completion | None = None, **more: Any) -> Any:
    return typer.Argument(help=help, autocompletion=offered, **more)


def named(text: str) -> Path:
    """A path. That of an empty text would be the current folder."""
    if not text:
        raise typer.BadParameter("the name is empty: give . for the current folder")
    return Path(text)


PATH: Any = {"parser": named, "metavar": "PATH"}

# ---------------------------------------------------------------------- several commands

DataDir = Annotated[
    Path | None,
    option("Where data sets lie (else $ORDERLESS_DATA).", exists=True, file_okay=False),
]
DataTarget = Annotated[
    Path | None, option("Where to put it (else $ORDERLESS_DATA).", name="--data-dir")
]
Device = Annotated[str, option("auto, cpu, cuda", completion.devices)]
KINDS = "domain, task or class; domain unless the benchmark is intents"
Kind = Annotated[str | None, option(KINDS, completion.scenarios)]
Combine = Annotated[str, option("Particles scored by: accuracy (mean of theirs), logits, probs.")]
CHANGE = "Change a setting: key=value; `orderless settings` lists them."
Changes = Annotated[list[str] | None, option(CHANGE, completion.settings, "--set")]
Plugin = Annotated[list[str] | None, option("A module of your own that registers methods.")]
CheckpointEvery = Annotated[float, option("Seconds between checkpoints.")]
Json = Annotated[bool, option("Print JSON and nothing else.", name="--json")]


def as_typed() -> str:
    """The command, for the records."""
    return shlex.join(["orderless", *sys.argv[1:]])


def data_root(data_dir: Path | None) -> str | None:
    """What a `DataDir` is to a benchmark."""
    return None if data_dir is None else str(data_dir)


def find_device(name: str) -> torch.device:
    """What a `Device` stands for on this machine."""
    import torch

    from .. import particles

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    return particles.find_device(name)


# ---------------------------------------------------------------------- run

BENCHMARKS = (
    "splitmnist, splitcifar100, intents, regime, procgen-bc, procgen-lifelong; or your own tasks, "
    "as module:name"
)
Benchmark = Annotated[str, word(BENCHMARKS, completion.benchmarks)]
Methods = Annotated[str, option("Comma-separated methods, or 'all'.", completion.methods)]
PLAYED = f"ProcGen: {', '.join(GAMES)} or all [{GAMES[0]}]."
Game = Annotated[str | None, option(PLAYED, completion.games)]
Levels = Annotated[str | None, option("ProcGen: the levels, 0,1,2 or 0-14 [preset].")]
StepsPerLevel = Annotated[int | None, option("procgen-lifelong: environment steps [preset].")]
ORDERS = "Orders of the tasks [10; demo: 3 or 2; gpu: 3; strong: 1]."
Permutations = Annotated[int | None, option(ORDERS)]
Seeds = Annotated[int | None, option("Seeds of networks and batches [1; table1: 3; strong: 20].")]
Particles = Annotated[int | None, option("Networks in a filter.")]
CHOICES = f"{', '.join(PRESETS)} [table1]; ProcGen: {', '.join(POLICY_PRESETS)} [gpu]."
AnyPreset = Annotated[str | None, option(CHOICES, completion.presets)]
RunDirectory = Annotated[Path | None, option("Run directory [runs/BENCHMARK-PRESET].", **PATH)]
Workers = Annotated[
    int | None, option("Processes, of one thread each, that compute cells [cores; GPU: 1].")
]
Launcher = Annotated[str, option("Where cells run: local or ray.")]
RayAddress = Annotated[
    str | None, option("A Ray cluster [$RAY_ADDRESS, else one on this machine].")
]
GpusPerCell = Annotated[float, option("With ray and cuda: 0.25 puts four cells on one GPU.")]
DryRun = Annotated[bool, option("Say what would be done.")]
SAME_BITS = "The same bits again on a GPU, too; slower there."
Deterministic = Annotated[bool, option(SAME_BITS, name="--deterministic")]
SCALARS = "Write scalars to OUT/tensorboard as well."
Tensorboard = Annotated[bool, option(SCALARS, name="--tensorboard")]

# ---------------------------------------------------------------------- tune

Tunable = Annotated[str, word("A benchmark, as for run.", completion.tunable)]
Key = Annotated[str, word("Setting to choose: lr, ewc_tuned, perturbation, ...")]
Values = Annotated[str, word("Comma-separated values to try.")]
CHOOSER = "Method that chooses [gd; ProcGen: ppo or bc]."
Chooser = Annotated[str | None, option(CHOOSER, completion.method)]

# ---------------------------------------------------------------------- audit, data, expert

Search = Annotated[int, option("Runs more that look for the worst and the best order.")]
BESIDE = "Run beside it: wpf, averaging, product, rb."
Compare = Annotated[str, option(BESIDE, completion.comparisons)]
AuditFolder = Annotated[
    Path | None, option("Folder for report.html, .md, .json and the runs to go on from.", **PATH)
]
Dataset = Annotated[str, word(", ".join(DATASETS), completion.data_sets)]
AnyDataset = Annotated[str | None, word("One data set; all without it.", completion.data_sets)]
OneGame = Annotated[str, word(", ".join(GAMES))]
