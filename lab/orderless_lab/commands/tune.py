"""`orderless tune`: choose a setting on held-out data."""

from pathlib import Path
from typing import Annotated

import typer

from orderless.cli.options import PATH, option, word

from . import completion, options


def tune(
    benchmark: options.Benchmark,
    key: Annotated[str, word("The setting: lr, ewc_strength, perturbation, ...")],
    values: Annotated[str, word("Comma-separated values to try.")],
    method: Annotated[
        str | None,
        option("Method to train [gd; ProcGen: ppo or bc].", autocompletion=completion.method),
    ] = None,
    scenario: options.Scenario = None,
    game: options.Game = None,
    preset: options.Preset = None,
    permutations: Annotated[int, option("Orders to average over.")] = 1,
    combine: Annotated[
        str, option("Score by particles (the mean of their own), logits or probs.")
    ] = "particles",
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, option("Run directory [runs/tune-...].", **PATH)] = None,
    workers: options.Workers = None,
    checkpoint_every: options.CheckpointEvery = 60.0,
    plugin: options.Plugin = None,
    changes: options.Changes = None,
) -> None:
    """Choose a setting by the average score on held-out training data; test data is not used.

    For ProcGen, by the average return with a seed that no table reports.

    If the best value is the largest or smallest, the grid is extended by its own ratio.

    Example: orderless tune splitmnist lr 1e-4,1e-3,1e-2
    """
    from rich.console import Console
    from rich.table import Table

    from ..methods.registry import load_plugins
    from ..runs.grid import Grid
    from ..runs.launch import RunProgress
    from ..runs.tuning import beyond, sweep
    from ..suites.registry import find_suite

    options.check_workers(workers, checkpoint_every)
    load_plugins(plugin or ())
    suite = find_suite(benchmark)
    held_out = [f"{name}={value}" for name, value in suite.settings.held_out.items()]
    accuracy = suite.unit == "accuracy"
    at_the_end = ["score_after=last"] if accuracy else []  # the choice reads no other score
    grid = Grid.plan(
        benchmark,
        preset,
        methods=method or suite.usual_method,
        variant=options.chosen_variant(benchmark, scenario, game),
        permutations=permutations,
        seeds=1,
        texts=[*held_out, *at_the_end, *(changes or ())],
    )
    texts = [text.strip() for text in values.split(",") if text.strip()]
    words = ["tune", benchmark, grid.variant, grid.preset, *grid.methods, key]
    with RunProgress() as listener:
        results = sweep(
            grid,
            key,
            texts,
            out or options.run_folder(*words),
            combine=combine,
            root=None if data_dir is None else str(data_dir),
            device=options.find_device(device),
            workers=workers,
            checkpoint_every=checkpoint_every,
            listener=listener,
            plugins=tuple(plugin or ()),
        )
    table = Table(key, "validation average" if accuracy else f"average return, {held_out[0]}")
    for text, score in results:
        table.add_row(text, f"{100 * score:.2f}" if accuracy else f"{score:.3f}")
    Console().print(table)
    added = [text for text, _ in results[len(texts) :]]
    if added:
        still = ", and still does: try values further out" if beyond(results) else ""
        typer.echo(f"the best value lay at the grid's end{still}; also tried {', '.join(added)}")
    best = max(results, key=lambda pair: pair[1])[0]
    typer.echo(f"best: {key}={best}")
