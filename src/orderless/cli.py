"""The command line: `orderless run`, `report`, `tune`, `data`."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from . import __version__
from .audit_command import run_audit
from .experiments import Grid, Store, StoreError, run_grid
from .experiments.estimate import estimate
from .experiments.progress import GridProgress, OnceOfAKind
from .experiments.store import read_cell
from .experiments.tuning import sweep
from .methods import METHODS
from .regime_command import draw_map
from .report import ReportError, format_json, format_table, summarize, write_report
from .scenarios import DATASETS, DataError, check, fetch, find
from .settings import GRIDS, PRESETS, find_preset

app = typer.Typer(
    help="Learning whose result does not depend on the order of the data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets: list, check, fetch.", no_args_is_help=True)
app.add_typer(data_app, name="data")

# What goes wrong for a user's reasons; the text of each is a sentence.
PROBLEMS = (ValueError, IndexError, OSError, FloatingPointError, DataError, ReportError, StoreError)


@contextmanager
def problems_as_sentences() -> Iterator[None]:
    """One sentence and exit code 2, no traceback; warnings as sentences, too."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = OnceOfAKind()
            yield
    except PROBLEMS as error:
        typer.echo(f"orderless: {error}", err=True)
        raise typer.Exit(2) from None
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        # torch has no error of its own for the host's memory
        known = ("out of memory", "allocate memory", "not enough memory")
        if type(error) is RuntimeError and not any(text in str(error) for text in known):
            raise
        typer.echo(
            "orderless: out of memory: use fewer --particles or --set chunk_size=K", err=True
        )
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
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


# ---------------------------------------------------------------------- run

Methods = Annotated[str, typer.Option(help="Comma-separated methods, or 'all'.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data sets lie (else $ORDERLESS_DATA).")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: key=value.")]


@app.command()
def run(
    benchmark: Annotated[str, typer.Argument(help="splitmnist, splitcifar100 or regime")],
    methods: Methods = "all",
    scenario: Annotated[str, typer.Option(help="domain, task or class")] = "domain",
    permutations: Annotated[
        int | None, typer.Option(help="Orders of the tasks [10; demo: 3].")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of networks and batches [1; table1: 3].")
    ] = None,
    particles: Annotated[int | None, typer.Option(help="Networks in a filter.")] = None,
    preset: Annotated[str, typer.Option(help=", ".join(PRESETS))] = "table1",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run directory [runs/BENCHMARK-PRESET].")] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes, of one thread each, that compute cells [cores; GPU: 1]."),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Say what would be done.")] = False,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    set: Set = None,
) -> None:
    """Train methods on a benchmark over permutations of the task order.

    Run the same command again and it does only what is missing. `regime` draws the map of when
    weighting helps (--preset demo, or full).

    Example: orderless run splitmnist --preset demo --permutations 3
    """
    with problems_as_sentences():
        if benchmark == "regime":
            paths = draw_map(
                "full" if preset == "table1" else preset,  # table1's settings, all of the map
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
        chosen = [] if particles is None else [f"particles={particles}"]
        settings = find_preset(preset).with_text([*chosen, *(set or [])])
        names = _method_names(methods, settings)
        orders, starts = GRIDS[preset]
        orders = orders if permutations is None else permutations
        starts = starts if seeds is None else seeds
        grid = Grid(benchmark, scenario, preset, names, orders, starts, settings)
        where = _device(device)
        for name, value in (("workers", workers), ("checkpoint-every", checkpoint_every)):
            least = 1 if name == "workers" else 0
            if value is not None and not value >= least:
                raise ValueError(f"--{name} must be at least {least}, got {value}")
        store = Store(out or Path("runs") / f"{benchmark}-{preset}")
        root = None if data_dir is None else str(data_dir)
        if dry_run:
            typer.echo(estimate(grid, store, root, where, workers))
            return
        with GridProgress() as progress:
            computed = run_grid(
                grid,
                store,
                root=root,
                device=where,
                workers=workers,
                checkpoint_every=checkpoint_every,
                report=progress.report,
            )
        typer.echo(f"{computed} cells computed; results in {store.directory}")
        _write_report(store.directory)


def _method_names(methods: str, settings: Any) -> tuple[str, ...]:
    if methods != "all":
        named = (name.strip() for name in methods.split(","))
        return tuple(dict.fromkeys(name for name in named if name))
    untuned = {k for k in ("ewc", "si", "lwf") if getattr(settings, f"{k}_tuned") is None}
    return tuple(
        name
        for name, each in METHODS.items()
        if each.in_all and ("-tuned" not in name or name.split("-")[0] not in untuned)
    )


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
    console = Console()
    for summary in summarize(directory, read=read_cell):
        console.print(format_table(summary, "text"), markup=False, highlight=False, soft_wrap=True)
    for path in write_report(directory, read=read_cell):
        if path.suffix in (".md", ".html", ".png"):
            typer.echo(f"wrote {path}")


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
    benchmark: Annotated[str, typer.Argument(help="splitmnist or splitcifar100")],
    key: Annotated[str, typer.Argument(help="Setting to choose: lr, ewc_tuned, si_tuned, ...")],
    values: Annotated[str, typer.Argument(help="Comma-separated values to try.")],
    method: Annotated[str, typer.Option(help="Method that chooses.")] = "gd",
    scenario: Annotated[str, typer.Option(help="domain, task or class")] = "domain",
    preset: Annotated[str, typer.Option(help=", ".join(PRESETS))] = "table1",
    permutations: Annotated[int, typer.Option(help="Orders to average over.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run directory.")] = None,
    set: Set = None,
) -> None:
    """Choose a setting by the average on held-out training data; test data is not touched.

    Example: orderless tune splitmnist lr 1e-4,1e-3,1e-2
    """
    with problems_as_sentences():
        settings = find_preset(preset).with_text(["validation=0.1", *(set or [])])
        grid = Grid(benchmark, scenario, preset, (method,), permutations, 1, settings)
        texts = [text.strip() for text in values.split(",") if text.strip()]
        folder = out or Path("runs") / f"tune-{benchmark}-{scenario}-{preset}-{method}-{key}"
        root = None if data_dir is None else str(data_dir)
        table = Table(key, "validation average")
        results = sweep(grid, key, texts, folder, root=root, device=_device(device))
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
    compare: Annotated[str, typer.Option(help="Run beside it: wpf, averaging, rb, or ''.")] = (
        "wpf,rb"
    ),
    out: Annotated[Path | None, typer.Option(help="Folder for report.md and report.json.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """How much the order of the tasks matters to your own learner, beyond what reseeding does.

    Example: orderless audit my_module:make_learner --tasks my_module:tasks --out audit
    """
    with problems_as_sentences():
        result, paths = run_audit(
            learner, tasks, orders=orders, seeds=seeds, compare=compare, out=out
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
    name: Annotated[str | None, typer.Argument(help="One data set; all without it.")] = None,
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
    name: Annotated[str, typer.Argument(help=", ".join(DATASETS))], data_dir: DataDir = None
) -> None:
    """Download a data set; a broken download goes on where it stopped."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = "{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with problems_as_sentences(), Progress(*columns, console=Console(stderr=True)) as bar:
        bars: dict[str, Any] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in bars:
                bars[file] = bar.add_task(file, total=total)
            bar.update(bars[file], completed=done, total=total)

        place = fetch(name, data_dir, progress=show)
        typer.echo(f"{name} is in {place}")


if __name__ == "__main__":
    app()
