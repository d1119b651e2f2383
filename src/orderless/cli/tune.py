"""`orderless tune`: a setting chosen on held-out data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..methods.presets import find_preset
from . import options
from .errors import problems_as_sentences
from .options import data_root, find_device


@problems_as_sentences()
def tune(
    benchmark: options.Tunable,
    key: options.Key,
    values: options.Values,
    method: options.Chooser = "gd",
    scenario: options.Kind = None,
    preset: options.Preset = "table1",
    permutations: Annotated[int, typer.Option(help="Orders to average over.")] = 1,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run directory.", **options.PATH)] = None,
    plugin: options.Plugin = None,
    changes: options.Changes = None,
) -> None:
    """Choose a setting by the average on held-out training data; test data is not touched.

    Where the best value is the largest or smallest, the grid goes on by its own ratio.

    Example: orderless tune splitmnist lr 1e-4,1e-3,1e-2
    """
    from rich.console import Console
    from rich.table import Table

    from ..experiments import Grid
    from ..experiments.benchmarks import BENCHMARKS
    from ..experiments.progress import reporting
    from ..experiments.tuning import beyond, sweep
    from ..methods.plugins import load_plugins

    load_plugins(plugin or ())
    known = [name for name, found in BENCHMARKS.items() if found.kind == "supervised"]
    if benchmark not in known:
        raise ValueError(f"tune takes {', '.join(known)}, got {benchmark!r}")
    scenario = scenario or BENCHMARKS[benchmark].scenarios[0]
    texts = [text.strip() for text in values.split(",") if text.strip()]
    first = [f"{key}={text}" for text in texts[:1]]  # ewc-tuned, say, cannot be without one
    settings = find_preset(preset, benchmark).with_text(
        ["validation=0.1", *(changes or []), *first]
    )
    grid = Grid(benchmark, scenario, preset, (method,), permutations, 1, settings)
    folder = out or Path("runs") / f"tune-{benchmark}-{scenario}-{preset}-{method}-{key}"
    where: Any = {"root": data_root(data_dir), "device": find_device(device)}
    results = sweep(grid, key, texts, folder, progress=reporting, **where)
    table = Table(key, "validation average")
    for text, score in results:
        table.add_row(text, f"{100 * score:.2f}")
    Console().print(table)
    best = max(results, key=lambda pair: pair[1])[0]
    if added := [text for text, _ in results[len(texts) :]]:
        still = ", and still does: name values further out" if beyond(results) else ""
        typer.echo(f"the best value lay at the grid's end{still}; also tried {', '.join(added)}")
    typer.echo(f"best: {key}={best}")
