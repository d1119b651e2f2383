"""The command line: `orderless doctor`, `run`, `report`, `tune`, `audit`, `data`, `expert`.

A command reads its options and hands over; those with much to read stand in their own
`*_command.py`. `options.py` says what options mean, `problems.py` what is said when something goes
wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..report import format_json, summarize
from . import options
from .audit import run_audit
from .data import data_app
from .doctor import examine, show
from .errors import problems_as_sentences
from .expert import expert_app
from .options import as_typed
from .report import show_report
from .run import run
from .tune import tune

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
app.add_typer(data_app, name="data")
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


app.command()(run)


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
        typer.echo(format_json(summarize(directory)))
    else:
        show_report(directory)


app.command()(tune)


@app.command()
@problems_as_sentences()
def audit(
    learner: Annotated[str, typer.Argument(help="module:make_learner, called with a seed.")],
    tasks: Annotated[str, typer.Option(help="module:tasks, a list of ol.Task or what makes one.")],
    orders: Annotated[
        int, typer.Option(help="Orders of the tasks; all where there are fewer.")
    ] = 10,
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
        command=as_typed(),
    )
    typer.echo(result.json() if json else result.text(), nl=not json)
    for path in paths:
        typer.echo(f"wrote {path}", err=json)


if __name__ == "__main__":
    app()
