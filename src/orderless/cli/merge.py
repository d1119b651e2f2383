"""`orderless merge` and `orderless forget`: heads of several sites as one, or without some data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from . import options
from .fit import check_kind, summary
from .options import check_output, word


def merge(
    heads: Annotated[list[Path], word("Files written by orderless fit, with --like one of them.")],
    out: options.NewHead,
) -> None:
    """Add the heads of several sites: the result is the head of all their data, to the bit.

    Example: orderless merge north.safetensors south.safetensors --out both.safetensors
    """
    from ..heads import Head

    check_output(out, *heads)
    first, *others = [Head.load(path) for path in heads]
    for path, other in zip(heads[1:], others, strict=True):
        try:
            first = first + other
        except ValueError as error:
            raise UserError(f"{path} cannot be added to {heads[0]}: {error}") from None
    first.save(out)
    typer.echo(f"wrote {out}: {summary(first)}")


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
    import torch

    from ..distributed import fit as fit_shards
    from ..heads import Head
    from ..heads.files import find_files

    torch.set_num_threads(1)  # as in fit
    files = find_files(data)
    check_output(out, head, *files.paths)
    whole = Head.load(head)
    recipe = whole.recipe
    check_kind(recipe, files)
    shards = recipe.portions(files)
    unwanted = Head(recipe, fit_shards(recipe.make_head(), shards, recipe.read, workers=1))
    try:
        rest = whole - unwanted
    except ValueError as error:
        raise UserError(f"{data} cannot be taken from {head}: {error}") from None
    rest.save(out)
    typer.echo(f"wrote {out}: {summary(rest)}")
