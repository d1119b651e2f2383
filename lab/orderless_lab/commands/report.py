"""`orderless report`: print the tables of one or several runs and write their report."""

from pathlib import Path
from typing import Annotated

import typer

from orderless.cli.options import PATH, Json, option, word


def report(
    directories: Annotated[list[Path], word("Run directories.", **PATH)],
    out: Annotated[
        Path | None, option("Where to write [the run; of several runs: nowhere].", **PATH)
    ] = None,
    json: Json = False,
) -> None:
    """Print the table of a run; write it and figures as Markdown, CSV, LaTeX, JSON, PNG, HTML.

    Several runs share one table, with a row for each method and each setting.

    Example: orderless report runs/splitmnist-demo
    """
    from ..report import format_table, summarize

    if json:
        typer.echo(format_table(summarize(*directories), "json"), nl=False)
        return
    if len(directories) == 1:
        show_report(*directories, out=out or directories[0])
    else:
        show_report(*directories, out=out)


def show_report(*directories: Path, out: Path | None) -> None:
    """Print the tables; with `out`, write the report there and print the paths of its readable
    files."""
    from rich.console import Console

    from orderless.cli.progress import Countdown

    from ..report import format_table, load, summarize, write_report

    console = Console()
    with Countdown() as progress:
        runs = [
            load(directory, lambda done, all: progress.tell(done, all, "reading cells"))
            for directory in directories
        ]
        summaries = summarize(*runs)
    for summary in summaries:
        console.print(format_table(summary, "text"), markup=False, highlight=False, soft_wrap=True)
    if out is None:
        typer.echo("pass --out to write these tables, the page and the figures")
        return
    with Console(stderr=True).status("drawing the page and the figures"):
        paths = write_report(*runs, out=out, summaries=summaries)
    for path in paths:
        if path.suffix in (".md", ".html", ".png"):
            typer.echo(f"wrote {path}")
