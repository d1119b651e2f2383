"""`orderless report`: the tables on the screen, the files in the run directory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .errors import problems_as_sentences

if TYPE_CHECKING:
    from ..experiments.progress import Countdown


@problems_as_sentences()
def report(
    directory: Annotated[Path, typer.Argument(help="A run directory.")],
    json: options.Json = False,
) -> None:
    """Tables, figures and one page of a run: text, Markdown, CSV, LaTeX, JSON, PNG, HTML.

    Example: orderless report runs/splitmnist-demo
    """
    from ..experiments.store import read_cell
    from ..report import format_json, summarize

    if json:
        typer.echo(format_json(summarize(directory, read=read_cell)))
    else:
        show_report(directory)


def show_report(directory: Path) -> None:
    """Print the tables, write the report, and say where the readable parts of it are."""
    from rich.console import Console

    from ..experiments.progress import Countdown
    from ..experiments.store import read_cell
    from ..report import format_table, summarize, write_report

    console, read = Console(), cache(read_cell)  # page and tables read the same cells
    with Countdown() as progress:
        summaries = summarize(directory, read=_counted(read, directory, progress))
    for summary in summaries:
        console.print(format_table(summary, "text"), markup=False, highlight=False, soft_wrap=True)
    with Console(stderr=True).status("drawing the page and the figures"):
        paths = write_report(directory, read=read)
    for path in paths:
        if path.suffix in (".md", ".html", ".png"):
            typer.echo(f"wrote {path}")


def _counted(
    read: Callable[[Path], dict[str, Any]], directory: Path, progress: Countdown
) -> Callable[[Path], dict[str, Any]]:
    """The same reader, which tells how far it has come."""
    total, done = len(list((directory / "cells").glob("*.json"))), count()

    def counting(path: Path) -> dict[str, Any]:
        progress.tell(next(done), total, "reading cells")
        return read(path)

    return counting
