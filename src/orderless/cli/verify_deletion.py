"""`orderless verify-deletion`: compare a head after deletion with one that never saw the data."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UserError
from . import options
from .options import word

NONE = "none"  # in the place of the digest of what a head does not have


def verify_deletion(
    first: Annotated[Path, word("The head after deletion.")],
    second: Annotated[Path, word("The one that was trained without the data.")],
    json: options.Json = False,
) -> None:
    """Check that two saved heads hold the same data, to the bit; exit with status 1 if not.

    Compares digests of maps, grid, class names, scales, every sum, kept samples and the ledger.

    Example: orderless verify-deletion after.safetensors retrained.safetensors
    """
    from ..io import INVALID_STATE, load

    states = [load(path) for path in (first, second)]
    try:
        ours, theirs = map(digests, states)
    except INVALID_STATE as error:
        raise UserError(f"{first} and {second} cannot be compared: {error}") from None
    pairs = {name: (ours.get(name, NONE), theirs.get(name, NONE)) for name in ours | theirs}
    different = [name for name, (one, other) in pairs.items() if one != other]
    if json:
        rows = [{"name": name, "values": pair} for name, pair in pairs.items()]
        report = {"equal": not different, "different": different, "compared": rows}
        typer.echo(json_module.dumps(report, indent=1))
    else:
        for name, (one, other) in pairs.items():
            verdict = f"is not {other}" if name in different else "equal"
            typer.echo(f"{name:22}{one} {verdict}")
        said = f"differ in {', '.join(different)}" if different else "hold the same data"
        typer.echo(f"{first} and {second} {said}")
    raise typer.Exit(1 if different else 0)


def digests(state: Mapping[str, Any]) -> dict[str, str]:
    """The number of samples and the SHA-256 of every part of the state of a head, or of what holds
    one: an estimator, or a file of `orderless fit`.

    A head from which data were deleted and one that never had them have the same sums to the bit,
    and keep the same samples. Then everything that can be computed from them is the same.
    """
    from ..io import digest

    head = state.get("head", state)
    if not isinstance(head, Mapping) or not {"basis", "sums", "particles"} <= head.keys():
        raise ValueError("this is no saved exact head, and nothing that holds one")
    around = {name: value for name, value in state.items() if name != "head"}
    sums = dict(head["sums"] or {"samples": 0})
    covered = {
        "kind of maps and grid": head["basis"],
        "maps": head["particles"],
        "classes and scales": {} if head is state else around,
        **sums,
    }
    return {
        name: str(value) if name == "samples" else digest(value) for name, value in covered.items()
    }
