"""`orderless report`: print the tables of a run and write its report."""

from pathlib import Path
from typing import Annotated

import typer

from orderless.cli.options import PATH, Json, word


def report(
    directory: Annotated[Path, word("A run directory.", **PATH)], json: Json = False
) -> None:
    """Print the tables of a run; write them and figures as Markdown, CSV, LaTeX, JSON, PNG, HTML.

    Example: orderless report runs/splitmnist-demo
    """
    from ..report import format_json, summarize

    if json:
        typer.echo(format_json(summarize(directory)))
    else:
        show_report(directory)


def show_report(directory: Path) -> None:
    """Print the tables, write the report, and print the paths of its readable files."""
    from rich.console import Console

    from orderless.cli.progress import Countdown

    from ..report import format_table, summarize, write_report
    from ..report.collect import loaded

    console = Console()
    with Countdown() as progress:
        run = loaded(directory, tell=lambda done, all: progress.tell(done, all, "reading cells"))
        summaries = summarize(run)
    for summary in summaries:
        console.print(format_table(summary, "text"), markup=False, highlight=False, soft_wrap=True)
    with Console(stderr=True).status("drawing the page and the figures"):
        paths = write_report(run, summaries=summaries)
    for path in paths:
        if path.suffix in (".md", ".html", ".png"):
            typer.echo(f"wrote {path}")
