"""Options that several commands share, and checks of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError

if TYPE_CHECKING:
    from ..heads.files import Files


def option(help: str, *names: str, **more: Any) -> Any:
    """An option with its help; `names` if they differ from the parameter's."""
    return typer.Option(*names, help=help, **more)


def word(help: str, **more: Any) -> Any:
    """An argument with its help."""
    return typer.Argument(help=help, **more)


def named(text: str) -> Path:
    """Parse a path; refuse an empty text, which `Path` takes for the current folder."""
    if not text:
        raise typer.BadParameter("the name is empty: give . for the current folder")
    return Path(text)


PATH: Any = {"parser": named, "metavar": "PATH"}

Data = Annotated[Path, option("A folder of images or tables, a CSV or a parquet file.")]
HeadFile = Annotated[Path, word("A file written by orderless fit.")]
NewHead = Annotated[Path, option("File for the new head.", **PATH)]
Json = Annotated[bool, option("Print JSON and nothing else.", "--json")]


def open_files(data: Path, out: Path | None, *inputs: Path) -> Files:
    """The user's files, none of which `out` may overwrite. Torch computes with one thread from now
    on: the bits of some features depend on it."""
    import torch

    from ..heads.files import find_files

    torch.set_num_threads(1)
    files = find_files(data)
    if out is not None:
        check_output(out, *inputs, *files.paths)
    return files


def check_output(out: Path, *inputs: Path) -> None:
    """Refuse to write over an input file, a folder or a device, before anything is computed."""
    from ..io import check_replaceable

    check_replaceable(out)
    if out.resolve() in {path.resolve() for path in inputs}:
        raise UserError(f"--out {out} would overwrite an input file: name another file")


def refuse(reason: str, **given: object) -> None:
    """Refuse options that were given although they would be ignored."""
    for name, value in given.items():
        if value is not None:
            raise UserError(f"--{name}: {reason}, so leave it out")
