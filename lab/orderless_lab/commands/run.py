"""`orderless run`: train methods on a benchmark over orders of the tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orderless.cli.options import PATH, option, word

from . import completion, options
from .options import find_device
from .report import show_report

BENCHMARKS = (
    "splitmnist, splitcifar100, intents, procgen-bc, procgen-lifelong, or module:name for your own "
    "tasks."
)


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
    dry_run: Annotated[bool, option("Print how many cells and bytes; compute nothing.")] = False,
    checkpoint_every: options.CheckpointEvery = 60.0,
    deterministic: Annotated[
        bool, option("Bit-identical results on a GPU, too; slower.", name="--deterministic")
    ] = False,
    plugin: options.Plugin = None,
    changes: options.Changes = None,
) -> None:
    """Train methods on a benchmark over permutations of the task order.

    The same command run again computes only what is missing.

    `orderless settings METHOD` lists the settings that --set changes.

    Example: orderless run splitmnist --preset demo --permutations 3
    """
    import torch

    from ..experiments import Store, run_grid
    from ..experiments.grid import count_cells
    from ..experiments.launch.ray import Ray
    from ..experiments.plan import check_launch, plan, refuse
    from ..experiments.progress import GridProgress
    from ..methods.plugins import load_plugins

    load_plugins(plugin or ())
    check_launch(launcher, workers, checkpoint_every)
    if launcher == "local":
        refuse("--launcher local", ray_address=ray_address, gpus_per_cell=gpus_per_cell)
    played = {"levels": levels, "steps_per_level": steps_per_level}
    root, changes = None if data_dir is None else str(data_dir), list(changes or [])
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
        for grid in grids:
            typer.echo(count_cells(grid, store, root))
        return
    computed = 0
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
                deterministic=deterministic,
                plugins=tuple(plugin or ()),
            )
    typer.echo(f"{computed} cells computed; results in {store.directory}")
    show_report(store.directory, out=store.directory)
