"""`orderless data`: list, check and fetch the data sets."""

from pathlib import Path
from typing import Annotated

import typer

from orderless.cli.options import option, word
from orderless.errors import DataError

from .. import datasets
from ..datasets.catalogue import DATASETS
from . import completion, options
from .options import problems_as_sentences

data_app = typer.Typer(help="List, check and fetch data sets.", no_args_is_help=True)


@data_app.command("list")
@problems_as_sentences()
def data_list(data_dir: options.DataDir = None) -> None:
    """List the data sets and where they were found."""
    for name, description in DATASETS.items():
        try:
            place = str(datasets.find(name, data_dir))
        except datasets.DataError:
            place = f"not found; `orderless data fetch {name}` gets it"
        typer.echo(f"{name:10s} {description}: {place}")


@data_app.command("check")
@problems_as_sentences()
def data_check(
    name: Annotated[
        str | None, word("A data set [all].", autocompletion=completion.data_sets)
    ] = None,
    data_dir: options.DataDir = None,
) -> None:
    """Compare files with their published checksums."""
    wrong = 0
    for each in [name] if name else list(DATASETS):
        results = datasets.check(each, data_dir)
        if not any(result.file.exists() for result in results):
            if name:
                datasets.find(name, data_dir)  # raises: the message names the ways to get it
            typer.echo(f"{each}: not found")
            continue
        for result in results:
            typer.echo(f"{'ok ' if result.ok else 'BAD'} {result.file}: {result.detail}")
            wrong += not result.ok
    if wrong:
        raise DataError(f"{wrong} file(s) are missing or damaged: run `orderless data fetch`")


@data_app.command("fetch")
@problems_as_sentences()
def data_fetch(
    name: Annotated[str, word(", ".join(DATASETS), autocompletion=completion.data_sets)],
    data_dir: Annotated[Path | None, option("Folder for it [$ORDERLESS_DATA].")] = None,
) -> None:
    """Download a data set, complete or not at all."""
    from orderless.cli.progress import Countdown

    with Countdown() as bar:

        def progress(file: str, done: int, total: int | None) -> None:
            megabytes = None if total is None else total // 10**6
            bar.tell(done // 10**6, megabytes, f"MB of {file}")

        place = datasets.fetch(name, data_dir, progress=progress)
    typer.echo(f"{name} is in {place}")
