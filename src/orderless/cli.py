"""The command line: `orderless doctor`, `run`, `report`, `tune`, `audit`, `data`, `expert`.

A command here reads its options and hands over; `options.py` says what they mean, `problems.py`
what is said when something goes wrong.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from . import __version__, options
from .audit_command import run_audit
from .doctor_command import examine, show
from .experiments import Grid, Store, run_grid
from .experiments.estimate import estimate
from .experiments.plan import check_launch, plan
from .experiments.progress import Countdown, GridProgress, reporting
from .experiments.ranks import joined, rank
from .experiments.ray_launcher import Ray
from .experiments.store import read_cell
from .experiments.tuning import sweep
from .expert_command import collect_levels, describe, train_expert
from .options import find_device
from .problems import problems_as_sentences
from .regime_command import draw_map
from .report import format_json, summarize
from .report_command import show_report
from .rl.procgen import parse_levels
from .scenarios import DATASETS, DataError, check, fetch, find
from .settings import find_preset

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


def _command() -> str:
    """The command as typed, for the records."""
    return shlex.join(["orderless", *sys.argv[1:]])


def _root(data_dir: Path | None) -> str | None:
    return None if data_dir is None else str(data_dir)


# ---------------------------------------------------------------------- doctor


@app.command()
@problems_as_sentences()
def doctor(
    data_dir: options.DataDir = None,
    out: Annotated[Path, typer.Option(help="Where runs would be written.")] = Path("runs"),
) -> None:
    """What is installed, which device and data are used, and what would not work.

    Example: orderless doctor
    """
    if not show(examine(data_dir, out)):
        raise typer.Exit(1)


# ---------------------------------------------------------------------- run


@app.command()
@problems_as_sentences()
def run(
    benchmark: options.Benchmark,
    methods: options.Methods = "all",
    scenario: options.Kind = "domain",
    game: options.Game = None,
    levels: options.Levels = None,
    steps_per_level: options.StepsPerLevel = None,
    permutations: options.Permutations = None,
    seeds: options.Seeds = None,
    particles: options.Particles = None,
    preset: options.AnyPreset = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    out: options.RunDirectory = None,
    workers: options.Workers = None,
    launcher: options.Launcher = "local",
    ray_address: options.RayAddress = None,
    gpus_per_cell: options.GpusPerCell = 1.0,
    dry_run: options.DryRun = False,
    checkpoint_every: options.CheckpointEvery = 60.0,
    tensorboard: options.Tensorboard = False,
    changes: options.Changes = None,
) -> None:
    """Train methods on a benchmark over permutations of the task order.

    Run the same command again and it does only what is missing. `regime` draws the map of when
    weighting helps (--preset demo, or full). Under torchrun the ranks share the particles out:
    torchrun --nproc-per-node 2 -m orderless run ...

    Example: orderless run splitmnist --preset demo --permutations 3
    """
    check_launch(benchmark, launcher, workers, checkpoint_every, tensorboard)
    if benchmark == "regime":
        paths = draw_map(
            # table1's settings, all of the map
            "full" if preset in (None, "table1") else preset,
            permutations=permutations,
            seeds=seeds,
            particles=particles,
            changes=changes,
            device=find_device(device),
            root=_root(data_dir),
            out=out,
            dry_run=dry_run,
            command=_command(),
            say=typer.echo,
        )
        for path in paths:
            typer.echo(f"wrote {path}")
        return
    named = {"particles": particles, "levels": levels, "steps_per_level": steps_per_level}
    grids = plan(
        benchmark,
        preset=preset,
        methods=methods,
        scenario=scenario,
        game=game,
        permutations=permutations,
        seeds=seeds,
        changes=[
            *(f"{key}={value}" for key, value in named.items() if value is not None),
            *(changes or []),
        ],
    )
    # a cluster may have what this machine lacks
    there = (launcher, device) == ("ray", "cuda")
    where = torch.device("cuda") if there else find_device(device)
    ray = Ray(ray_address, gpus_per_cell if where.type == "cuda" else 0.0, workers)
    store = Store(out or Path("runs") / f"{benchmark}-{grids[0].preset}")
    if dry_run:
        for grid in grids if rank() == 0 else []:
            typer.echo(estimate(grid, store, _root(data_dir), where, workers))
        return
    computed = 0
    with joined(where) as group:
        for grid in grids:
            with GridProgress(grid.scenario if len(grids) > 1 else "") as progress:
                computed += run_grid(
                    grid,
                    store,
                    root=_root(data_dir),
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
        show_report(store.directory)


# ---------------------------------------------------------------------- report


@app.command()
@problems_as_sentences()
def report(
    directory: Annotated[Path, typer.Argument(help="A run directory.")],
    json: options.Json = False,
) -> None:
    """Tables, figures and one page of a run: text, Markdown, CSV, LaTeX, JSON, PNG, HTML.

    Example: orderless report runs/splitmnist-demo
    """
    if json:
        typer.echo(format_json(summarize(directory, read=read_cell)))
    else:
        show_report(directory)


# ---------------------------------------------------------------------- tune


@app.command()
@problems_as_sentences()
def tune(
    benchmark: options.Tunable,
    key: options.Key,
    values: options.Values,
    method: options.Chooser = "gd",
    scenario: options.Kind = "domain",
    preset: options.Preset = "table1",
    permutations: Annotated[int, typer.Option(help="Orders to average over.")] = 1,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run directory.")] = None,
    changes: options.Changes = None,
) -> None:
    """Choose a setting by the average on held-out training data; test data is not touched.

    Example: orderless tune splitmnist lr 1e-4,1e-3,1e-2
    """
    texts = [text.strip() for text in values.split(",") if text.strip()]
    first = [f"{key}={text}" for text in texts[:1]]  # ewc-tuned, say, cannot be without one
    settings = find_preset(preset).with_text(["validation=0.1", *(changes or []), *first])
    grid = Grid(benchmark, scenario, preset, (method,), permutations, 1, settings)
    folder = out or Path("runs") / f"tune-{benchmark}-{scenario}-{preset}-{method}-{key}"
    where: Any = {"root": _root(data_dir), "device": find_device(device)}
    results = sweep(grid, key, texts, folder, progress=reporting, **where)
    table = Table(key, "validation average")
    for text, score in results:
        table.add_row(text, f"{100 * score:.2f}")
    Console().print(table)
    best = max(results, key=lambda pair: pair[1])[0]
    typer.echo(f"best: {key}={best}")


# ---------------------------------------------------------------------- audit


@app.command()
@problems_as_sentences()
def audit(
    learner: Annotated[str, typer.Argument(help="module:make_learner, called with a seed.")],
    tasks: Annotated[str, typer.Option(help="module:tasks, a list of ol.Task or what makes one.")],
    orders: Annotated[int, typer.Option(help="Orders of the tasks.")] = 10,
    seeds: Annotated[int, typer.Option(help="Seeds.")] = 3,
    compare: options.Compare = "wpf,rb",
    out: options.AuditFolder = None,
    json: options.Json = False,
) -> None:
    """How much the order of the tasks matters to your own learner, beyond what reseeding does.

    With --out every finished run is kept: run the same command again and it does only what is
    missing.

    Example: orderless audit my_module:make_learner --tasks my_module:tasks --out audit
    """
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
@problems_as_sentences()
def data_list(data_dir: options.DataDir = None) -> None:
    """Which data sets there are, and where they were found."""
    for name, description in DATASETS.items():
        try:
            place = str(find(name, data_dir))
        except DataError:
            place = f"not found; `orderless data fetch {name}` gets it"
        typer.echo(f"{name:10s} {description}: {place}")


@data_app.command("check")
@problems_as_sentences()
def data_check(name: options.AnyDataset = None, data_dir: options.DataDir = None) -> None:
    """Compare files with their published checksums."""
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
@problems_as_sentences()
def data_fetch(name: options.Dataset, data_dir: options.DataDir = None) -> None:
    """Download a data set; a broken download goes on where it stopped."""
    with Countdown(bytes=True) as bars:
        place = fetch(
            name,
            data_dir,
            progress=lambda file, done, total: bars.tell(done, total, file, name=file),
        )
    typer.echo(f"{name} is in {place}")


# ---------------------------------------------------------------------- expert


@expert_app.command("train")
@problems_as_sentences()
def expert_train(
    game: options.OneGame,
    steps: Annotated[int, typer.Option(help="Environment steps in all.")] = 5_000_000,
    levels: Annotated[int, typer.Option(help="Train on so many levels, from level 0 on.")] = 200,
    envs: Annotated[int, typer.Option(help="Copies of the game stepped together.")] = 64,
    network: Annotated[str, typer.Option(help="impala, or compact (a small one)")] = "impala",
    seed: Annotated[int, typer.Option(help="Of network, actions and levels.")] = 0,
    episodes: Annotated[int, typer.Option(help="Episodes per copy when measuring returns.")] = 4,
    device: options.Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder of the expert and its checkpoint.")] = Path(
        "runs/experts"
    ),
    checkpoint_every: options.CheckpointEvery = 60.0,
) -> None:
    """Train an expert by PPO; the same command goes on where it stopped, also with more --steps.

    Example: orderless expert train starpilot --steps 5000000
    """
    path, expert = train_expert(
        game,
        steps=steps,
        levels=levels,
        envs=envs,
        network=network,
        seed=seed,
        device=find_device(device),
        out=out,
        checkpoint_every=checkpoint_every,
        episodes=episodes,
    )
    typer.echo(describe(expert))
    typer.echo(f"wrote {path}")


@expert_app.command("collect")
@problems_as_sentences()
def expert_collect(
    game: options.OneGame,
    levels: Annotated[str, typer.Option(help="0,1,2 or 0-14")] = "0-14",
    transitions: Annotated[int, typer.Option(help="So many from each level.")] = 100_000,
    expert: Annotated[
        Path | None, typer.Option(help="An expert's file (else the package's own).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the expert's actions.")] = 0,
    device: options.Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the transitions.")] = Path("runs/procgen"),
) -> None:
    """Write what an expert sees and does on each level; files that are there are checked and kept.

    Example: orderless expert collect starpilot --levels 0-2 --transitions 20000
    """
    collected = collect_levels(
        game,
        parse_levels(levels),
        transitions,
        expert=expert,
        seed=seed,
        device=find_device(device),
        out=out,
    )
    for path, facts in collected:
        mean = facts["mean_return"]
        worth = "no episode ended" if mean is None else f"normalised return {mean:.3f}"
        typer.echo(f"{path}: {worth} ({facts['episodes']} episodes)")


if __name__ == "__main__":
    app()
