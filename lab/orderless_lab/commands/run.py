"""`orderless run`: train methods on a benchmark over orders of the tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderless.cli import options
from orderless.cli.options import PATH, as_typed, find_device, option, word

from . import completion
from .report import show_report

if TYPE_CHECKING:
    import torch

    from ..experiments import Store
    from ..experiments.regime import Regime

BENCHMARKS = (
    "splitmnist, splitcifar100, intents, regime, procgen-bc, procgen-lifelong, or module:name for "
    "your own tasks."
)
MAP = "when-weighting-helps"


def run(
    benchmark: Annotated[str, word(BENCHMARKS, completion.benchmarks)],
    methods: Annotated[
        str, option("Comma-separated methods, or 'all'.", completion.methods)
    ] = "all",
    scenario: options.Kind = None,
    game: options.Game = None,
    levels: Annotated[str | None, option("ProcGen: levels, as 0,1,2 or 0-14 [preset].")] = None,
    steps_per_level: Annotated[
        int | None, option("procgen-lifelong: environment steps per level [preset].")
    ] = None,
    permutations: Annotated[
        int | None, option("Orders of the tasks [10; demo: 3 or 2; gpu: 3; strong: 1].")
    ] = None,
    seeds: Annotated[
        int | None, option("Seeds of networks and batches [1; table1: 3; strong: 20].")
    ] = None,
    particles: Annotated[int | None, option("Networks per filter [preset].")] = None,
    preset: options.Preset = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, option("Run directory [runs/BENCHMARK-PRESET].", **PATH)] = None,
    workers: options.Workers = None,
    launcher: Annotated[str, option("local (processes of this machine) or ray.")] = "local",
    ray_address: Annotated[
        str | None, option("Address of a Ray cluster [$RAY_ADDRESS, else this machine].")
    ] = None,
    gpus_per_cell: Annotated[
        float | None, option("ray: GPUs per cell; 0.25 puts four cells on one GPU [1].")
    ] = None,
    dry_run: Annotated[bool, option("Print cells, memory and time; compute nothing.")] = False,
    checkpoint_every: options.CheckpointEvery = 60.0,
    deterministic: Annotated[
        bool, option("Bit-identical results on a GPU, too; slower.", name="--deterministic")
    ] = False,
    tensorboard: Annotated[
        bool, option("Also write scalars to OUT/tensorboard.", name="--tensorboard")
    ] = False,
    plugin: options.Plugin = None,
    changes: options.Changes = None,
) -> None:
    """Train methods on a benchmark over permutations of the task order.

    The same command run again computes only what is missing. `regime` draws the map of when
    weighting helps (--preset demo, or full). Under torchrun the particles are divided among the
    ranks: torchrun --nproc-per-node 2 -m orderless run ...

    `orderless settings METHOD` lists the settings that --set changes.

    Example: orderless run splitmnist --preset demo --permutations 3
    """
    import torch

    from ..experiments import Store, run_grid
    from ..experiments.estimate import estimate
    from ..experiments.launch.ranks import joined, rank
    from ..experiments.launch.ray import Ray
    from ..experiments.plan import check_launch, plan, refuse
    from ..experiments.progress import GridProgress
    from ..experiments.regime import find_regime
    from ..methods.plugins import load_plugins

    load_plugins(plugin or ())
    check_launch(benchmark, launcher, workers, checkpoint_every)
    if launcher == "local":
        refuse("--launcher local", ray_address=ray_address, gpus_per_cell=gpus_per_cell)
    played = {"levels": levels, "steps_per_level": steps_per_level}
    root, changes = None if data_dir is None else str(data_dir), list(changes or [])
    if benchmark == "regime":
        refuse(benchmark, methods=methods != "all", scenario=scenario not in (None, "domain"))
        refuse(benchmark, game=game, **played, workers=workers)
        refuse(benchmark, deterministic=deterministic, tensorboard=tensorboard)
        n = None if particles is None else (particles,)
        sizes = {"permutations": permutations, "seeds": seeds, "particles": n}
        known: Any = {name: size for name, size in sizes.items() if size is not None}
        # the whole map has table1's settings
        which = "full" if preset in (None, "table1") else preset
        regime = find_regime(which)
        regime = replace(regime, settings=regime.settings.with_text(changes), **known)
        store = Store(out or Path("runs") / f"regime-{which}")
        draw_map(regime, store, find_device(device), root, dry_run)
        return
    named = {"particles": particles, **played}
    grids = plan(
        benchmark,
        preset=preset,
        methods=methods,
        scenario=scenario,
        game=game,
        permutations=permutations,
        seeds=seeds,
        changes=[*(f"{key}={v}" for key, v in named.items() if v is not None), *changes],
    )
    # a cluster may have a GPU where this machine has none
    there = (launcher, device) == ("ray", "cuda")
    where = torch.device("cuda") if there else find_device(device)
    gpus = 1.0 if gpus_per_cell is None else gpus_per_cell
    ray = Ray(ray_address, gpus if where.type == "cuda" else 0.0, workers)
    store = Store(out or Path("runs") / f"{benchmark.replace(':', '-')}-{grids[0].preset}")
    if dry_run:
        for grid in grids if rank() == 0 else []:
            for line in estimate(grid, store, root, where, workers):
                typer.echo(line)
        return
    computed = 0
    with joined(where) as group:
        for grid in grids:
            with GridProgress(grid.scenario if len(grids) > 1 else "") as report:
                computed += run_grid(
                    grid,
                    store,
                    root=root,
                    device=where,
                    workers=workers,
                    ray=ray if launcher == "ray" else None,
                    checkpoint_every=checkpoint_every,
                    report=report,
                    group=group,
                    tensorboard=tensorboard,
                    deterministic=deterministic,
                    plugins=tuple(plugin or ()),
                )
    if rank() == 0:
        typer.echo(f"{computed} cells computed; results in {store.directory}")
        show_report(store.directory)


def draw_map(
    regime: Regime, store: Store, device: torch.device, root: str | None, dry_run: bool
) -> None:
    """Draw the map of when weighting helps: train what is missing, write its JSON and figure."""
    from orderless.io import write_atomically
    from orderless_lab.storage.typed import as_json

    from ..experiments.engine import counting
    from ..experiments.estimate import estimate
    from ..experiments.progress import Countdown
    from ..experiments.regime import run_regime
    from ..report.figures import save
    from ..report.regime import summarize_regime
    from ..report.regime_figure import regime_figure

    if dry_run:
        for line in estimate(regime, store, root, device):
            typer.echo(line)
        return
    with Countdown() as progress:
        report, command = counting(progress.tell), as_typed()
        records = run_regime(
            regime, store, root=root, device=device, command=command, report=report
        )
    summary = summarize_regime(records)
    data, picture = (store.directory / f"{MAP}.{end}" for end in ("json", "png"))
    text = json.dumps(as_json(summary), indent=1, allow_nan=False) + "\n"
    write_atomically(data, text.encode())
    typer.echo(f"wrote {data}")
    typer.echo(f"wrote {save(regime_figure(summary), picture)}")
