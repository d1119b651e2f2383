"""`orderless merge` and `orderless forget`: heads of several sites as one, or without some data."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from . import options
from .fit import summary
from .options import check_output, open_files, word


def merge(
    heads: Annotated[list[Path], word("Files written by orderless fit, with --like one of them.")],
    out: options.NewHead,
) -> None:
    """Add the heads of several sites: the result is the head of all their data, to the bit.

    A head that is given twice is refused: its samples would count twice.

    Example: orderless merge north.safetensors south.safetensors --out both.safetensors
    """
    from ..heads import Head

    check_output(out, *heads)
    total = Head.load(heads[0])
    for number, path in enumerate(heads[1:], 1):
        try:
            total = total + Head.load(path)
        except ValueError as error:
            raise UserError(f"{path} cannot be added to {heads[0]}: {error}") from None
        for other in heads[:number]:
            if filecmp.cmp(path, other, shallow=False):
                raise UserError(
                    f"{path} holds the same data as {other}, which would count twice: name every "
                    "head once"
                )
    total.save(out)
    typer.echo(f"wrote {out}: {summary(total)}")


def forget(
    head: options.HeadFile,
    data: options.Data,
    out: options.NewHead,
) -> None:
    """Remove samples from a head: the result is the head that never saw them, to the bit.

    The data has the form of that of fit, with all classes or values. A head that was fitted with
    --ledger refuses samples that are not in it.

    Example: orderless forget head.safetensors --data user.csv --out after.safetensors
    """
    from ..heads import Head

    files = open_files(data, out, head)
    whole = Head.load(head)
    unwanted = Head.fit(whole.recipe, files, workers=1)
    try:
        rest = whole - unwanted
    except ValueError as error:
        raise UserError(f"{data} cannot be taken from {head}: {error}") from None
    rest.save(out)
    typer.echo(f"wrote {out}: {summary(rest)}")
