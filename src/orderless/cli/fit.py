"""`orderless fit`: fit an exact head to a user's own images or tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError, did_you_mean
from ..text import percent
from . import options
from .options import PATH, check_output, option, refuse

if TYPE_CHECKING:
    from ..heads import Head, Recipe
    from ..heads.files import Files

FEATURES = (
    "relu, linear (tables); leaves, convolution, lite0, lite1, lite2 (images) [relu; leaves]."
)
SHOWN = 10  # names of classes or columns in a line
FEW_BYTES = 2**24  # of data, for which processes would take longer to begin than to work
ALL_KEPT = 4096  # samples up to which all are kept for the share that is right when left out


def fit(
    data: options.Data,
    out: Annotated[Path, option("File for the head.", **PATH)],
    features: Annotated[str | None, option(f"Features: {FEATURES}")] = None,
    count: Annotated[
        int | None, option("Features per map [1024 or more; images: 1536].", min=8, max=10**5)
    ] = None,
    maps: Annotated[int | None, option("Random maps to average [1].", min=1, max=1000)] = None,
    seed: Annotated[int | None, option("Seed of the maps [0].", min=0, max=2**31 - 1)] = None,
    size: Annotated[
        int | None, option("Images are resized to SIZE x SIZE [32; lite: 224].", min=8, max=1024)
    ] = None,
    label: Annotated[str | None, option("Tables: column with the class [label].")] = None,
    target: Annotated[
        str | None, option("Tables: column with a number to predict instead of a class.")
    ] = None,
    columns: Annotated[
        str | None, option("Tables: comma-separated columns to learn from [all others].")
    ] = None,
    ledger: Annotated[
        bool, option("Remember which samples are in; forget refuses others.", name="--ledger")
    ] = False,
    like: Annotated[Path | None, option("Take features, classes and scales from a head.")] = None,
    workers: options.Workers = None,
) -> None:
    """Learn your own images or tables: an exact linear head on fixed features.

    Images lie in one folder per class. Tables have a column with the class, or with a number to
    predict (--target); a parquet column may hold lists, such as embeddings. The result is the same
    to the bit for every order of the data and number of workers.

    Example: orderless fit --data photos --features lite0 --out head.safetensors
    """
    import torch

    from ..distributed import fit as fit_shards
    from ..heads import Head, Recipe
    from ..heads.files import find_files
    from ..heads.survey import survey
    from .progress import Countdown

    torch.set_num_threads(1)  # the bits of some features depend on it
    files = find_files(data)
    check_output(out, *files.paths)
    of_tables = {"label": label, "target": target, "columns": columns}
    of_maps = {"features": features, "count": count, "maps": maps, "seed": seed}
    if like is not None:
        refuse(f"it is that of {like}", **of_tables, **of_maps, size=size, ledger=ledger or None)
        recipe = Head.load(like).recipe
        check_kind(recipe, files)
        samples = len(files.paths) if files.images else None
    else:
        chosen = [name.strip() for name in columns.split(",")] if columns else []
        found = survey(files, target or label or "label", chosen, target is not None)
        if files.images:
            refuse(f"it is for tables, and {data} holds images", **of_tables)
            label, size = "", size or (224 if "lite" in (features or "") else 32)
        else:
            refuse(f"it is for images, and {data} holds tables", size=size)
            label, size = target or label or "label", 0
        kind, count = choose_features(files, features, count, len(found.mean))
        calibration = 1 if found.samples <= ALL_KEPT else 16
        recipe = Recipe(
            kind,
            count,
            maps or 1,
            seed or 0,
            size=size,
            label=label,
            calibration=calibration,
            ledger=ledger,
            **found.contents(),
        )
        samples = found.samples
    if sum(path.stat().st_size for path in files.paths) < FEW_BYTES:
        workers = 1
    with Countdown() as bar:
        exact = fit_shards(
            recipe.make_head(),
            recipe.portions(files),
            recipe.read,
            workers=workers,
            progress=lambda done: bar.tell(int(done), samples, f"{data}"),
        )
    head = Head(recipe, exact)
    head.save(out)
    typer.echo(f"wrote {out}: {summary(head)}")


def choose_features(
    files: Files, features: str | None, count: int | None, width: int
) -> tuple[str, int]:
    """The kind of features and their number, for images or for rows of `width` numbers."""
    from ..heads.recipe import MAPS

    kind = features or ("leaves" if files.images else "relu")
    if kind not in MAPS:
        guess = did_you_mean(kind, MAPS)
        raise UserError(f"--features must be one of {', '.join(MAPS)}, got {kind!r}{guess}")
    if kind != "relu" and files.images == (kind == "linear"):
        ours, theirs = ("tables", "images") if files.images else ("images", "tables")
        raise UserError(f"--features {kind} is for {ours}, and {files.root} holds {theirs}")
    if kind == "linear":
        refuse("linear features are the numbers themselves", count=count)
    if count is None:
        usual = {"relu": 1536 if files.images else min(4096, max(1024, 4 * width))}
        count = {**usual, "leaves": 1536, "convolution": 1536}.get(kind, 0)
    if kind in ("leaves", "convolution") and count % 8:
        raise UserError(f"--count must be a multiple of 8 with {kind}, got {count}")
    return kind, count


def check_kind(recipe: Recipe, files: Files) -> None:
    """Refuse a head for the other kind of data."""
    if bool(recipe.size) != files.images:
        ours, theirs = ("images", "tables") if recipe.size else ("tables", "images")
        raise UserError(f"this head is for {ours}, and {files.root} holds {theirs}")


def summary(head: Head) -> str:
    """What a head has learned from, and how well it predicts what it has not seen."""
    recipe = head.recipe
    parts = [f"{head.exact.samples:,} samples", listed("columns", recipe.columns)]
    if recipe.spread:
        parts.append(f"values of {recipe.label}, of standard error {head.noise():.3g}")
    else:
        right, kept = head.left_out()
        parts.append(listed("classes", recipe.classes))
        parts.append(
            f"{percent(right / kept)}% of {kept:,} are right when left out" if kept else ""
        )
    return "\n".join(filter(None, parts))


def listed(noun: str, names: list[str]) -> str:
    """The number of some things and the first of their names; empty for nothing."""
    more = ", ..." if len(names) > SHOWN else ""
    return f"{noun} ({len(names)}): {', '.join(names[:SHOWN])}{more}" if names else ""
