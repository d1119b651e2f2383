"""`orderless run`: methods over orders of the tasks, cell by cell."""

from pathlib import Path

import typer

from . import options
from .errors import problems_as_sentences
from .options import data_root, find_device
from .regime import draw_map
from .report import show_report


@problems_as_sentences()
def run(
    benchmark: options.Benchmark,
    methods: options.Methods = "all",
    scenario: options.Kind = None,
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
    deterministic: options.Deterministic = False,
    tensorboard: options.Tensorboard = False,
    plugin: options.Plugin = None,
    changes: options.Changes = None,
) -> None:
    """Train methods on a benchmark over permutations of the task order.

    Run the same command again and it does only what is missing. `regime` draws the map of when
    weighting helps (--preset demo, or full). Under torchrun the ranks share the particles out:
    torchrun --nproc-per-node 2 -m orderless run ...

    `orderless settings METHOD` says what --set changes.

    Example: orderless run splitmnist --preset demo --permutations 3
    """
    import torch

    from ..experiments import Store, run_grid
    from ..experiments.estimate import estimate
    from ..experiments.launch.ranks import joined, rank
    from ..experiments.launch.ray import Ray
    from ..experiments.plan import check_launch, plan, refuse
    from ..experiments.progress import GridProgress
    from ..methods.plugins import load_plugins

    load_plugins(plugin or ())
    check_launch(benchmark, launcher, workers, checkpoint_every)
    named = {"particles": particles, "levels": levels, "steps_per_level": steps_per_level}
    root, changes = data_root(data_dir), list(changes or [])
    if benchmark == "regime":
        refuse(
            "regime",
            methods=methods != "all",
            scenario=scenario not in (None, "domain"),
            game=game is not None,
            levels=levels is not None,
            steps_per_level=steps_per_level is not None,
            workers=workers is not None,
            deterministic=deterministic,
            tensorboard=tensorboard,
        )
        which = "full" if preset in (None, "table1") else preset  # table1's settings, all of it
        sizes = {"permutations": permutations, "seeds": seeds, "particles": particles}
        for line in draw_map(which, sizes, changes, find_device(device), root, out, dry_run):
            typer.echo(line)
        return
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
    # a cluster may have what this machine lacks
    there = (launcher, device) == ("ray", "cuda")
    where = torch.device("cuda") if there else find_device(device)
    ray = Ray(ray_address, gpus_per_cell if where.type == "cuda" else 0.0, workers)
    store = Store(out or Path("runs") / f"{benchmark.replace(':', '-')}-{grids[0].preset}")
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
                    deterministic=deterministic,
                    plugins=tuple(plugin or ()),
                )
    if rank() == 0:
        typer.echo(f"{computed} cells computed; results in {store.directory}")
        show_report(store.directory)
