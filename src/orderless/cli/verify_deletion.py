"""`orderless verify-deletion`: compare a filter after deletion with one that never saw the data."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError
from . import options
from .options import word

if TYPE_CHECKING:
    from ..exact.certificate import Line


def verify_deletion(
    first: Annotated[Path, word("The filter or head after deletion.")],
    second: Annotated[Path, word("The one that was trained without the data.")],
    json: options.Json = False,
) -> None:
    """Check that two saved filters hold the same data, to the bit; exit with status 1 if not.

    Compares maps, grid, class names, scales, every sum, kept samples and the evidence.

    Example: orderless verify-deletion after.safetensors retrained.safetensors
    """
    from ..exact.certificate import compare
    from ..io import INVALID_STATE, load

    states = [load(path) for path in (first, second)]
    try:
        lines = compare(*states)
    except INVALID_STATE as error:
        raise UserError(f"{first} and {second} cannot be compared: {error}") from None
    same = all(line.equal for line in lines)
    if json:
        found = [{**asdict(line), "equal": line.equal} for line in lines]
        paths = [str(first), str(second)]
        typer.echo(json_module.dumps({"files": paths, "equal": same, "compared": found}, indent=1))
    else:
        typer.echo("\n".join(map(words, lines)))
        typer.echo(
            f"{first} and {second} hold the same data: all differences are exactly 0"
            if same
            else f"{first} and {second} differ in {', '.join(x.name for x in lines if not x.equal)}"
        )
    raise typer.Exit(0 if same else 1)


def words(line: Line) -> str:
    """One line of the comparison, with both values if they differ."""
    if line.equal:
        size = "" if line.difference is None else ", difference exactly 0"
        return f"{line.name:22}{line.values[0]}: equal{size}"
    size = "" if line.difference is None else f", largest difference {line.difference:g}"
    return f"{line.name:22}{line.values[0]} is not {line.values[1]}{size}"
