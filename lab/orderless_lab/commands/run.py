"""`orderless run`: train methods on a benchmark over orders of the tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orderless.cli.options import PATH, option
from orderless.errors import UserError

from . import completion, options
from .report import show_report


def run(
    benchmark: options.Benchmark,
    methods: Annotated[
        str, option("Comma-separated methods, or 'all'.", autocompletion=completion.methods)
    ] = "all",
    scenario: options.Scenario = None,
    game: options.Game = None,
    levels: Annotated[str | None, option("ProcGen: levels, as 0,1,2 or 0-14 [preset].")] = None,
    steps_per_level: Annotated[
        int | None, option("procgen-lifelong: environment steps per level [preset].")
    ] = None,
    permutations: Annotated[int | None, option("Orders of the tasks [preset].")] = None,
    seeds: Annotated[int | None, option("Seeds of networks and batches [preset].")] = None,
    particles: Annotated[int | None, option("Networks per filter [preset].")] = None,
    preset: options.Preset = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, option("Run directory [runs/BENCHMARK-PRESET].", **PATH)] = None,
    workers: options.Workers = None,
    shard: Annotated[
        str | None, option("Part k/n of the cells, for job arrays: 1/8, 2/8, ... 8/8.")
    ] = None,
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
        bool, option("Bit-identical results on a GPU, too; slower.", "--deterministic")
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

    from ..methods.registry import load_plugins
    from ..runs.grid import Grid, count_cells, run_grids
    from ..runs.launch import RunProgress
    from ..runs.ray import Ray
    from ..runs.store import Store
    from ..suites.registry import find_suite

    if launcher not in ("local", "ray"):
        raise UserError(f"--launcher must be local or ray, got {launcher!r}")
    if launcher == "local":
        for name, value in {"ray-address": ray_address, "gpus-per-cell": gpus_per_cell}.items():
            if value is not None:
                raise UserError(f"--{name} is for --launcher ray: leave it out")
    options.check_workers(workers, checkpoint_every)
    load_plugins(plugin or ())
    named = {"particles": particles, "levels": levels, "steps_per_level": steps_per_level}
    given: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    suite = find_suite(benchmark)
    variant = options.chosen_variant(benchmark, scenario, game)
    grids = [
        Grid.plan(
            benchmark,
            preset,
            methods=methods,
            variant=name,
            permutations=permutations,
            seeds=seeds,
            texts=changes or (),
            **given,
        )
        for name in (suite.variants if game == "all" else [variant])
    ]
    store = Store(out or options.run_folder(benchmark, grids[0].preset))
    if dry_run:
        for grid in grids:
            typer.echo(count_cells(grid, store))
        return
    ray = None
    where = torch.device("cuda")  # a cluster may have a GPU where this machine has none
    if (launcher, device) != ("ray", "cuda"):
        where = options.find_device(device)
    if launcher == "ray":
        gpus = 1.0 if gpus_per_cell is None else gpus_per_cell
        ray = Ray(ray_address, gpus if where.type == "cuda" else 0.0, workers)
    with RunProgress() as listener:
        computed = run_grids(
            [(grid, store) for grid in grids],
            root=None if data_dir is None else str(data_dir),
            device=where,
            workers=workers,
            ray=ray,
            shard=part_of(shard),
            checkpoint_every=checkpoint_every,
            listener=listener,
            deterministic=deterministic,
            plugins=tuple(plugin or ()),
        )
    typer.echo(f"{computed} cells computed; results in {store.directory}")
    if shard is None:
        show_report(store.directory, out=store.directory)
    else:
        typer.echo(f"when all parts are done: orderless report {store.directory}")


def part_of(shard: str | None) -> tuple[int, int]:
    """(k, n) of the text k/n."""
    if shard is None:
        return (1, 1)
    number, slash, parts = shard.partition("/")
    if number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts):
        return int(number), int(parts)
    raise UserError(f"--shard must be k/n with k from 1 to n, got {shard!r}")
