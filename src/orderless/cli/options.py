"""The options that commands take: what each means, and what the shell offers for it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..methods.presets import POLICY_PRESETS, PRESETS
from ..rl.games import GAMES
from ..scenarios import DATASETS
from . import completion

if TYPE_CHECKING:
    import torch

# ---------------------------------------------------------------------- several commands

DataDir = Annotated[
    Path | None,
    typer.Option(help="Where data sets lie (else $ORDERLESS_DATA).", exists=True, file_okay=False),
]
DataTarget = Annotated[
    Path | None, typer.Option("--data-dir", help="Where to put it (else $ORDERLESS_DATA).")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda", autocompletion=completion.devices)]
Kind = Annotated[
    str | None,
    typer.Option(
        help="domain, task or class; domain unless the benchmark is intents",
        autocompletion=completion.scenarios,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a setting: key=value; `orderless settings` lists them.",
        autocompletion=completion.settings,
    ),
]
Plugin = Annotated[
    list[str] | None, typer.Option("--plugin", help="A module of your own that registers methods.")
]
CheckpointEvery = Annotated[float, typer.Option(help="Seconds between checkpoints.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def as_typed() -> str:
    """The command, for the records."""
    return shlex.join(["orderless", *sys.argv[1:]])


def data_root(data_dir: Path | None) -> str | None:
    """What a `DataDir` is to a benchmark."""
    return None if data_dir is None else str(data_dir)


def find_device(name: str) -> torch.device:
    """What a `Device` stands for on this machine."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here: use --device cpu")
    return torch.device(name)


# ---------------------------------------------------------------------- run

Benchmark = Annotated[
    str,
    typer.Argument(
        help="splitmnist, splitcifar100, intents, regime, procgen-bc, procgen-lifelong, or your "
        "own: module:name",
        autocompletion=completion.benchmarks,
    ),
]
Methods = Annotated[
    str, typer.Option(help="Comma-separated methods, or 'all'.", autocompletion=completion.methods)
]
Game = Annotated[
    str | None,
    typer.Option(
        help=f"ProcGen: {', '.join(GAMES)} or all [{GAMES[0]}].", autocompletion=completion.games
    ),
]
Levels = Annotated[str | None, typer.Option(help="ProcGen: the levels, 0,1,2 or 0-14 [preset].")]
StepsPerLevel = Annotated[
    int | None, typer.Option(help="procgen-lifelong: environment steps [preset].")
]
Permutations = Annotated[
    int | None, typer.Option(help="Orders of the tasks [10; demo: 3 or 2; gpu: 3; strong: 1].")
]
Seeds = Annotated[
    int | None, typer.Option(help="Seeds of networks and batches [1; table1: 3; strong: 20].")
]
Particles = Annotated[int | None, typer.Option(help="Networks in a filter.")]
AnyPreset = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(PRESETS)} [table1]; ProcGen: {', '.join(POLICY_PRESETS)} [gpu].",
        autocompletion=completion.presets,
    ),
]
RunDirectory = Annotated[Path | None, typer.Option(help="Run directory [runs/BENCHMARK-PRESET].")]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes, of one thread each, that compute cells [cores; GPU: 1]."),
]
Launcher = Annotated[str, typer.Option(help="Where cells run: local or ray.")]
RayAddress = Annotated[
    str | None, typer.Option(help="A Ray cluster [$RAY_ADDRESS, else one on this machine].")
]
GpusPerCell = Annotated[
    float, typer.Option(help="With ray and cuda: 0.25 puts four cells on one GPU.")
]
DryRun = Annotated[bool, typer.Option(help="Say what would be done.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="The same bits again on a GPU, too; slower there.")
]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Write scalars to OUT/tensorboard as well.")
]

# ---------------------------------------------------------------------- tune

Tunable = Annotated[
    str,
    typer.Argument(help="A benchmark, as for run.", autocompletion=completion.tunable),
]
Key = Annotated[str, typer.Argument(help="Setting to choose: lr, ewc_tuned, perturbation, ...")]
Values = Annotated[str, typer.Argument(help="Comma-separated values to try.")]
Chooser = Annotated[
    str | None,
    typer.Option(
        help="Method that chooses [gd; ProcGen: ppo or bc].", autocompletion=completion.method
    ),
]

# ---------------------------------------------------------------------- audit

Search = Annotated[
    int, typer.Option(help="So many runs more look for the worst and the best order.")
]
Compare = Annotated[
    str,
    typer.Option(
        help="Run beside it: wpf, averaging, product, rb.", autocompletion=completion.comparisons
    ),
]
AuditFolder = Annotated[
    Path | None, typer.Option(help="Folder for report.html, .md, .json and the runs to go on from.")
]

# ---------------------------------------------------------------------- data, expert

Dataset = Annotated[
    str, typer.Argument(help=", ".join(DATASETS), autocompletion=completion.data_sets)
]
AnyDataset = Annotated[
    str | None,
    typer.Argument(help="One data set; all without it.", autocompletion=completion.data_sets),
]
OneGame = Annotated[str, typer.Argument(help=", ".join(GAMES))]
