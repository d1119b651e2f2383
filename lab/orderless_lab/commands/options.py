"""What several commands of the lab share: options, their checks, and errors as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from orderless.cli import errors
from orderless.cli.options import option, word
from orderless.errors import UserError

from ..rl.games import GAMES
from ..suites import BENCHMARKS
from ..text import file_name
from . import completion

if TYPE_CHECKING:
    import torch

KNOWN = f"{', '.join(BENCHMARKS)}, or module:name for your own tasks."
Benchmark = Annotated[str, word(KNOWN, autocompletion=completion.benchmarks)]
DataDir = Annotated[
    Path | None, option("Folder with data sets [$ORDERLESS_DATA].", exists=True, file_okay=False)
]
Device = Annotated[
    str, option("auto, cpu, cuda or cuda:NUMBER.", autocompletion=completion.devices)
]
SCENARIOS = "domain, task or class [domain; intents: class]."
Scenario = Annotated[str | None, option(SCENARIOS, autocompletion=completion.scenarios)]
CHANGE = "Change a setting: key=value. `orderless settings` lists them."
Changes = Annotated[list[str] | None, option(CHANGE, "--set", autocompletion=completion.settings)]
PLAYED = f"ProcGen: {', '.join(GAMES)}; `run` takes all, too [{GAMES[0]}]."
Game = Annotated[str | None, option(PLAYED, autocompletion=completion.games)]
OneGame = Annotated[str, word(", ".join(GAMES))]
CHOICES = "table1, demo, own, ...; ProcGen: gpu, demo, ... [the first that `settings` lists]."
Preset = Annotated[str | None, option(CHOICES, autocompletion=completion.presets)]
Plugin = Annotated[list[str] | None, option("A module of your own that registers methods.")]
Workers = Annotated[int | None, option("Worker processes, one thread each [one per core; GPU: 1].")]
CheckpointEvery = Annotated[float, option("Seconds between checkpoints.")]


@contextmanager
def problems_as_sentences(less_memory: str = "less data") -> Iterator[None]:
    """As in the library; whoever stops a command is told how it goes on."""
    with errors.problems_as_sentences(less_memory):
        try:
            yield
        except KeyboardInterrupt as stopped:
            stopped.args = stopped.args or (
                "stopped; the same command resumes from what was saved",
            )
            raise


def find_device(name: str) -> torch.device:
    """The device that a `Device` names on this machine."""
    import torch

    from orderless import ensemble

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise UserError(f"device must be auto, cpu, cuda or cuda:NUMBER, got {name!r}")
    try:
        return ensemble.find_device(name)
    except ValueError as error:
        raise UserError(str(error)) from None


def check_workers(workers: int | None, checkpoint_every: float) -> None:
    """Raise for options without sense."""
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, got {workers}")
    if not checkpoint_every >= 0:  # nor NaN
        raise UserError(f"--checkpoint-every must be at least 0, got {checkpoint_every}")


def chosen_variant(benchmark: str, scenario: str | None, game: str | None) -> str | None:
    """The scenario or the game, whichever the benchmark has."""
    from ..suites.registry import find_suite

    given = {"scenario": scenario, "game": game}
    has = find_suite(benchmark).variant_name
    for name, value in given.items():
        if name != has and value is not None:
            raise UserError(f"--{name} is not for {benchmark}, which has a {has}: leave it out")
    return given[has]


def run_folder(*words: str) -> Path:
    """The usual directory of a run."""
    return Path("runs") / file_name("-".join(words).replace(":", "-"))
