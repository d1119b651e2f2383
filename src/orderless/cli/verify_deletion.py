"""`orderless verify-deletion`: compare a head after deletion with one that never saw the data."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from . import options
from .options import word


def verify_deletion(
    first: Annotated[Path, word("The head after deletion.")],
    second: Annotated[Path, word("The one that was trained without the data.")],
    json: options.Json = False,
) -> None:
    """Check that two saved heads hold the same data, to the bit; exit with status 1 if not.

    Compares digests of maps, grid, class names, scales, every sum, kept samples and the ledger.

    Example: orderless verify-deletion after.safetensors retrained.safetensors
    """
    from ..exact.digests import digests
    from ..io import INVALID_STATE, load

    states = [load(path) for path in (first, second)]
    try:
        ours, theirs = map(digests, states)
    except INVALID_STATE as error:
        raise UserError(f"{first} and {second} cannot be compared: {error}") from None
    different = [name for name in ours if ours[name] != theirs[name]]
    if json:
        rows = [{"name": name, "values": [ours[name], theirs[name]]} for name in ours]
        report = {"equal": not different, "different": different, "compared": rows}
        typer.echo(json_module.dumps(report, indent=1))
    else:
        for name, value in ours.items():
            verdict = f"is not {theirs[name]}" if name in different else "equal"
            typer.echo(f"{name:22}{value} {verdict}")
        said = f"differ in {', '.join(different)}" if different else "hold the same data"
        typer.echo(f"{first} and {second} {said}")
    raise typer.Exit(1 if different else 0)
