"""The command line: `orderless doctor`, `run`, `report`, `tune`, `audit`, `data`, `expert`."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from . import __version__, completion
from .audit_command import run_audit
from .doctor_command import examine, show
from .experiments import Grid, Store, StoreError, run_grid
from .experiments.estimate import estimate
from .experiments.plan import plan
from .experiments.progress import Countdown, GridProgress, OnceOfAKind, reporting
from .experiments.ranks import complain, joined, rank, ranks
from .experiments.ray_launcher import Ray
from .experiments.store import read_cell
from .experiments.tuning import sweep
from .expert_command import collect_levels, describe, train_expert
from .policy_settings import POLICY_PRESETS
from .regime_command import draw_map
from .report import ReportError, format_json, format_table, summarize, write_report
from .rl.procgen import GAMES, parse_levels
from .rl.runtime import ProcgenMissing
from .scenarios import DATASETS, DataError, check, fetch, find
from .settings import PRESETS, find_preset

# In the order in which a newcomer meets them.
EXAMPLES = (
    "doctor",
    "run splitmnist --preset demo",
    "report runs/splitmnist-demo",
    "audit my_module:make_learner --tasks my_module:tasks --out audit",
    "tune splitmnist lr 1e-4,1e-3,1e-2",
    "data fetch mnist",
    "expert train starpilot",
)

app = typer.Typer(
    help="Learning whose result does not depend on the order of the data.",
    epilog="\n\n".join(["Examples:", *(f"- orderless {example}" for example in EXAMPLES)]),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # "rich" would take [what stands in brackets] for a style
)
data_app = typer.Typer(help="Data sets: list, check, fetch.", no_args_is_help=True)
app.add_typer(data_app, name="data")
expert_app = typer.Typer(help="Experts for ProcGen: train, collect.", no_args_is_help=True)
app.add_typer(expert_app, name="expert")

# What goes wrong for a user's reasons; the text of each is a sentence.
PROBLEMS = (
    ValueError,
    IndexError,
    OSError,
    FloatingPointError,
    DataError,
    ReportError,
    StoreError,
    ProcgenMissing,
)


@contextmanager
def problems_as_sentences() -> Iterator[None]:
    """One sentence and exit code 2, no traceback; warnings as sentences, too."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = OnceOfAKind()
            yield
    except PROBLEMS as error:
        complain(error)
        raise typer.Exit(2) from None
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        # torch has no error of its own for the host's memory
        known = ("out of memory", "allocate memory", "not enough memory")
        told = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not told and not any(text in str(error) for text in known):
            raise
        complain("out of memory: use fewer --particles or --set chunk_size=K")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        if rank() == 0:
            typer.echo("\norderless: stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None


def _version(value: bool) -> None:
    if value:
        typer.echo(f"orderless {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass


# ---------------------------------------------------------------------- doctor


@app.command()
def doctor(
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data sets lie (else $ORDERLESS_DATA).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs would be written.")] = Path("runs"),
) -> None:
    """What is installed, which device and data are used, and what would not work.

    Example: orderless doctor
    """
    with problems_as_sentences():
        if not show(examine(data_dir, out)):
            raise typer.Exit(1)


# ---------------------------------------------------------------------- run

Methods = Annotated[
    str,
    typer.Option(help="Comma-separated methods, or 'all'.", autocompletion=completion.methods),
]
DataDir = Annotated[Path | None, typer.Option(help="Where data sets lie (else $ORDERLESS_DATA).")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting: key=value.", autocompletion=completion.settings),
]
Preset = Annotated[str, typer.Option(help=", ".join(PRESETS), autocompletion=completion.presets)]
Kind = Annotated[
    str, typer.Option(help="domain, task or class", autocompletion=completion.scenarios)
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda", autocompletion=completion.devices)]


@app.command()
def run(
    benchmark: Annotated[
        str,
        typer.Argument(
            help="splitmnist, splitcifar100, regime, procgen-bc or procgen-lifelong",
            autocompletion=completion.benchmarks,
        ),
    ],
    methods: Methods = "all",
    scenario: Kind = "domain",
    game: Annotated[
        str | None,
        typer.Option(
            help=f"ProcGen: {', '.join(GAMES)} or all [{GAMES[0]}].",
            autocompletion=completion.games,
        ),
    ] = None,
    levels: Annotated[
        str | None, typer.Option(help="ProcGen: the levels, 0,1,2 or 0-14 [preset].")
    ] = None,
    steps_per_level: Annotated[
        int | None, typer.Option(help="procgen-lifelong: environment steps [preset].")
    ] = None,
    permutations: Annotated[
        int | None, typer.Option(help="Orders of the tasks [10; demo: 3].")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of networks and batches [1; table1: 3].")
    ] = None,
    particles: Annotated[int | None, typer.Option(help="Networks in a filter.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(PRESETS)} [table1]; ProcGen: {', '.join(POLICY_PRESETS)} [gpu].",
            autocompletion=completion.presets,
        ),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run directory [runs/BENCHMARK-PRESET].")] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes, of one thread each, that compute cells [cores; GPU: 1]."),
    ] = None,
    launcher: Annotated[str, typer.Option(help="Where cells run: local or ray.")] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="A Ray cluster [$RAY_ADDRESS, else one on this machine].")
    ] = None,
    gpus_per_cell: Annotated[
        float, typer.Option(help="With ray and cuda: 0.25 puts four cells on one GPU.")
    ] = 1.0,
    dry_run: Annotated[bool, typer.Option(help="Say what would be done.")] = False,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write scalars to OUT/tensorboard as well.")
    ] = False,
    set: Set = None,
) -> None:
    """Train methods on a benchmark over permutations of the task order.

    Run the same command again and it does only what is missing. `regime` draws the map of when
    weighting helps (--preset demo, or full). Under torchrun the ranks share the particles out:
    torchrun --nproc-per-node 2 -m orderless run ...

    Example: orderless run splitmnist --preset demo --permutations 3
    """
    with problems_as_sentences():
        alone = benchmark == "regime" or benchmark.startswith("procgen")
        if ranks() > 1 and (alone or workers not in (None, 1)):
            what = benchmark if alone else "--workers"
            raise ValueError(f"{what} is for one process: leave it out, or torchrun")
        if launcher not in ("local", "ray"):
            raise ValueError(f"launcher must be local or ray, got {launcher!r}")
        if launcher == "ray" and (ranks() > 1 or benchmark == "regime"):
            what = "torchrun" if ranks() > 1 else "regime"
            raise ValueError(f"--launcher ray does not go with {what}: leave it out")
        if benchmark == "regime" and tensorboard:
            raise ValueError("--tensorboard shows the cells of a benchmark: leave it out of regime")
        if benchmark == "regime":
            paths = draw_map(
                # table1's settings, all of the map
                "full" if preset in (None, "table1") else preset,
                permutations=permutations,
                seeds=seeds,
                particles=particles,
                changes=set,
                device=_device(device),
                root=None if data_dir is None else str(data_dir),
                out=out,
                dry_run=dry_run,
                command=_command(),
                say=typer.echo,
            )
            for path in paths:
                typer.echo(f"wrote {path}")
            return
        named = {"particles": particles, "levels": levels, "steps_per_level": steps_per_level}
        changes = [f"{key}={value}" for key, value in named.items() if value is not None]
        grids = plan(
            benchmark,
            preset=preset,
            methods=methods,
            scenario=scenario,
            game=game,
            permutations=permutations,
            seeds=seeds,
            changes=[*changes, *(set or [])],
        )
        # a cluster may have what this machine lacks
        where = torch.device("cuda") if (launcher, device) == ("ray", "cuda") else _device(device)
        ray = Ray(ray_address, gpus_per_cell if where.type == "cuda" else 0.0, workers)
        for name, value in (("workers", workers), ("checkpoint-every", checkpoint_every)):
            least = 1 if name == "workers" else 0
            if value is not None and not value >= least:
                raise ValueError(f"--{name} must be at least {least}, got {value}")
        store = Store(out or Path("runs") / f"{benchmark}-{grids[0].preset}")
        root = None if data_dir is None else str(data_dir)
        if dry_run:
            for grid in grids if rank() == 0 else []:
                typer.echo(estimate(grid, store, root, where, workers))
            return
        computed = 0
        with joined(where) as group:
            for grid in grids:
                with GridProgress(grid.scenario if len(grids) > 1 else "") as progress:
                    computed += run_grid(
                        grid,
                        store,
                        root=root,
                        device=where,
                        workers=workers,
                        ray=ray if launcher == "ray" else None,
                        checkpoint_every=checkpoint_every,
                        report=progress.report,
                        group=group,
                        tensorboard=tensorboard,
                    )
        if rank() == 0:
            typer.echo(f"{computed} cells computed; results in {store.directory}")
            _write_report(store.directory)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here: use --device cpu")
    return torch.device(name)


def _command() -> str:
    """The command as typed, for the records."""
    return shlex.join(["orderless", *sys.argv[1:]])


# ---------------------------------------------------------------------- report


def _write_report(directory: Path) -> None:
    console, read = Console(), cache(read_cell)  # page and tables read the same cells
    with Countdown() as progress:
        summaries = summarize(directory, read=_counted(read, directory, progress))
    for summary in summaries:
        console.print(format_table(summary, "text"), markup=False, highlight=False, soft_wrap=True)
    with Console(stderr=True).status("drawing the page and the figures"):
        paths = write_report(directory, read=read)
    for path in paths:
        if path.suffix in (".md", ".html", ".png"):
            typer.echo(f"wrote {path}")


def _counted(
    read: Callable[[Path], dict[str, Any]], directory: Path, progress: Countdown
) -> Callable[[Path], dict[str, Any]]:
    """The same reader, which tells how far it has come."""
    total, done = len(list((directory / "cells").glob("*.json"))), count()

    def counting(path: Path) -> dict[str, Any]:
        progress.tell(next(done), total, "reading cells")
        return read(path)

    return counting


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A run directory.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Tables, figures and one page of a run: text, Markdown, CSV, LaTeX, JSON, PNG, HTML.

    Example: orderless report runs/splitmnist-demo
    """
    with problems_as_sentences():
        if json:
            typer.echo(format_json(summarize(directory, read=read_cell)))
        else:
            _write_report(directory)


# ---------------------------------------------------------------------- tune


@app.command()
def tune(
    benchmark: Annotated[
        str,
        typer.Argument(help="splitmnist or splitcifar100", autocompletion=completion.tunable),
    ],
    key: Annotated[str, typer.Argument(help="Setting to choose: lr, ewc_tuned, si_tuned, ...")],
    values: Annotated[str, typer.Argument(help="Comma-separated values to try.")],
    method: Annotated[
        str, typer.Option(help="Method that chooses.", autocompletion=completion.method)
    ] = "gd",
    scenario: Kind = "domain",
    preset: Preset = "table1",
    permutations: Annotated[int, typer.Option(help="Orders to average over.")] = 1,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run directory.")] = None,
    set: Set = None,
) -> None:
    """Choose a setting by the average on held-out training data; test data is not touched.

    Example: orderless tune splitmnist lr 1e-4,1e-3,1e-2
    """
    with problems_as_sentences():
        texts = [text.strip() for text in values.split(",") if text.strip()]
        first = [f"{key}={text}" for text in texts[:1]]  # ewc-tuned, say, cannot be without one
        settings = find_preset(preset).with_text(["validation=0.1", *(set or []), *first])
        grid = Grid(benchmark, scenario, preset, (method,), permutations, 1, settings)
        folder = out or Path("runs") / f"tune-{benchmark}-{scenario}-{preset}-{method}-{key}"
        root = None if data_dir is None else str(data_dir)
        table = Table(key, "validation average")
        options: Any = {"root": root, "device": _device(device), "progress": reporting}
        results = sweep(grid, key, texts, folder, **options)
        for text, score in results:
            table.add_row(text, f"{100 * score:.2f}")
        Console().print(table)
        best = max(results, key=lambda pair: pair[1])[0]
        typer.echo(f"best: {key}={best}")


# ---------------------------------------------------------------------- audit


@app.command()
def audit(
    learner: Annotated[str, typer.Argument(help="module:make_learner, called with a seed.")],
    tasks: Annotated[str, typer.Option(help="module:tasks, a list of ol.Task or what makes one.")],
    orders: Annotated[int, typer.Option(help="Orders of the tasks.")] = 10,
    seeds: Annotated[int, typer.Option(help="Seeds.")] = 3,
    compare: Annotated[
        str,
        typer.Option(
            help="Run beside it: wpf, averaging, rb, or ''.", autocompletion=completion.comparisons
        ),
    ] = "wpf,rb",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for report.html, .md, .json and the runs to go on from."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """How much the order of the tasks matters to your own learner, beyond what reseeding does.

    With --out every finished run is kept: run the same command again and it does only what is
    missing.

    Example: orderless audit my_module:make_learner --tasks my_module:tasks --out audit
    """
    with problems_as_sentences():
        result, paths = run_audit(
            learner,
            tasks,
            orders=orders,
            seeds=seeds,
            compare=compare,
            out=out,
            command=_command(),
        )
        typer.echo(result.json() if json else result.text(), nl=not json)
        for path in paths:
            typer.echo(f"wrote {path}", err=json)


# ---------------------------------------------------------------------- data


@data_app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """Which data sets there are, and where they were found."""
    for name, description in DATASETS.items():
        try:
            place = str(find(name, data_dir))
        except DataError:
            place = f"not found; `orderless data fetch {name}` gets it"
        typer.echo(f"{name:10s} {description}: {place}")


@data_app.command("check")
def data_check(
    name: Annotated[
        str | None,
        typer.Argument(help="One data set; all without it.", autocompletion=completion.data_sets),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Compare files with their published checksums."""
    with problems_as_sentences():
        wrong = 0
        for each in [name] if name else list(DATASETS):
            results = check(each, data_dir)
            if not any(result.file.exists() for result in results):
                if name:
                    find(name, data_dir)  # says how to get it
                typer.echo(f"{each}: not found")
                continue
            for result in results:
                typer.echo(f"{'ok ' if result.ok else 'BAD'} {result.file}: {result.detail}")
                wrong += not result.ok
        if wrong:
            raise ValueError(f"{wrong} file(s) are not what they should be")


@data_app.command("fetch")
def data_fetch(
    name: Annotated[
        str, typer.Argument(help=", ".join(DATASETS), autocompletion=completion.data_sets)
    ],
    data_dir: DataDir = None,
) -> None:
    """Download a data set; a broken download goes on where it stopped."""
    with problems_as_sentences():
        with Countdown(bytes=True) as bars:
            place = fetch(
                name,
                data_dir,
                progress=lambda file, done, total: bars.tell(done, total, file, name=file),
            )
        typer.echo(f"{name} is in {place}")


# ---------------------------------------------------------------------- expert

Game = Annotated[str, typer.Argument(help=", ".join(GAMES))]


@expert_app.command("train")
def expert_train(
    game: Game,
    steps: Annotated[int, typer.Option(help="Environment steps in all.")] = 5_000_000,
    levels: Annotated[int, typer.Option(help="Train on so many levels, from level 0 on.")] = 200,
    envs: Annotated[int, typer.Option(help="Copies of the game stepped together.")] = 64,
    network: Annotated[str, typer.Option(help="impala, or compact (a small one)")] = "impala",
    seed: Annotated[int, typer.Option(help="Of network, actions and levels.")] = 0,
    episodes: Annotated[int, typer.Option(help="Episodes per copy when measuring returns.")] = 4,
    device: Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder of the expert and its checkpoint.")] = Path(
        "runs/experts"
    ),
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
) -> None:
    """Train an expert by PPO; the same command goes on where it stopped, also with more --steps.

    Example: orderless expert train starpilot --steps 5000000
    """
    with problems_as_sentences():
        path, expert = train_expert(
            game,
            steps=steps,
            levels=levels,
            envs=envs,
            network=network,
            seed=seed,
            device=_device(device),
            out=out,
            checkpoint_every=checkpoint_every,
            episodes=episodes,
        )
        typer.echo(describe(expert))
        typer.echo(f"wrote {path}")


@expert_app.command("collect")
def expert_collect(
    game: Game,
    levels: Annotated[str, typer.Option(help="0,1,2 or 0-14")] = "0-14",
    transitions: Annotated[int, typer.Option(help="So many from each level.")] = 100_000,
    expert: Annotated[
        Path | None, typer.Option(help="An expert's file (else the package's own).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the expert's actions.")] = 0,
    device: Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the transitions.")] = Path("runs/procgen"),
) -> None:
    """Write what an expert sees and does on each level; files that are there are checked and kept.

    Example: orderless expert collect starpilot --levels 0-2 --transitions 20000
    """
    with problems_as_sentences():
        chosen = parse_levels(levels)
        for path, facts in collect_levels(
            game,
            chosen,
            transitions,
            expert=expert,
            seed=seed,
            device=_device(device),
            out=out,
        ):
            mean = facts["mean_return"]
            worth = "no episode ended" if mean is None else f"normalised return {mean:.3f}"
            typer.echo(f"{path}: {worth} ({facts['episodes']} episodes)")


if __name__ == "__main__":
    app()
