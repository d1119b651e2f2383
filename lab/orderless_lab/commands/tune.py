"""`orderless tune`: choose a setting on held-out data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from orderless.cli.options import PATH, option, word

from . import completion, options
from .options import find_device


def tune(
    benchmark: Annotated[str, word("A benchmark, as for run.", completion.benchmarks)],
    key: Annotated[str, word("The setting: lr, ewc_tuned, perturbation, ...")],
    values: Annotated[str, word("Comma-separated values to try.")],
    method: Annotated[
        str | None, option("Method to train [gd; ProcGen: ppo or bc].", completion.method)
    ] = None,
    scenario: options.Kind = None,
    game: options.Game = None,
    preset: options.Preset = None,
    permutations: Annotated[int, option("Orders to average over.")] = 1,
    combine: Annotated[
        str, option("Score by accuracy (mean over particles), logits or probs.")
    ] = "accuracy",
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, option("Run directory [runs/tune-...].", **PATH)] = None,
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

    from ..experiments.benchmarks import find_benchmark
    from ..experiments.plan import plan
    from ..experiments.progress import GridProgress
    from ..experiments.tuning import beyond, sweep
    from ..methods.plugins import load_plugins
    from ..methods.policy_settings import PolicySettings
    from ..methods.settings import Settings

    load_plugins(plugin or ())
    kind = find_benchmark(benchmark).kind
    supervised = kind == "supervised"
    held_out = (Settings if supervised else PolicySettings).held_out
    at_the_end = ["score_after=last"] if supervised else []  # the choice reads no other score
    texts = [text.strip() for text in values.split(",") if text.strip()]
    first = [f"{key}={text}" for text in texts[:1]]  # some methods, such as ewc-tuned, need a value
    grid, *others = plan(
        benchmark,
        preset=preset,
        methods=method or {"supervised": "gd", "cloning": "bc", "lifelong": "ppo"}[kind],
        scenario=scenario,
        game=game,
        permutations=permutations,
        seeds=1,
        changes=[held_out, *at_the_end, *(changes or []), *first],
    )
    if others:
        raise ValueError("a setting is chosen on one game, got --game all: name one game")
    words = ["tune", benchmark, grid.scenario, grid.preset, *grid.methods, key]
    runs, name = Path("runs"), "-".join(words)
    old = runs / name  # of an older version, with the ":" of module:name
    folder = out or (old if old.is_dir() else runs / name.replace(":", "-"))
    where: Any = {"root": data_dir and str(data_dir), "device": find_device(device)}
    results = sweep(grid, key, texts, folder, combine=combine, progress=GridProgress, **where)
    table = Table(key, "validation average" if supervised else f"average return, {held_out}")
    for text, score in results:
        table.add_row(text, f"{100 * score:.2f}" if supervised else f"{score:.3f}")
    Console().print(table)
    best = max(results, key=lambda pair: pair[1])[0]
    if added := [text for text, _ in results[len(texts) :]]:
        still = ", and still does: try values further out" if beyond(results) else ""
        typer.echo(f"the best value lay at the grid's end{still}; also tried {', '.join(added)}")
    typer.echo(f"best: {key}={best}")
