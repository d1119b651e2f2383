"""`orderless fit`: fit an exact head to a user's own images or tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError, did_you_mean
from . import options
from .options import PATH, open_files, option, refuse

if TYPE_CHECKING:
    from ..heads import Head
    from ..heads.files import Files

FEATURES = "relu, linear (tables); leaves, lite0, lite1, lite2 (images) [relu; leaves]."
SHOWN = 10  # names of classes or columns in a line
FEW_BYTES = 2**24  # of data, for which processes would take longer to begin than to work


def fit(
    data: options.Data,
    out: Annotated[Path, option("File for the head.", **PATH)],
    features: Annotated[str | None, option(f"Features: {FEATURES}")] = None,
    count: Annotated[
        int | None, option("Features [1024 or more; images: 1536].", min=8, max=10**5)
    ] = None,
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
        bool, option("Remember which samples are in; forget refuses others.", "--ledger")
    ] = False,
    like: Annotated[
        Path | None, option("Take features, classes and scales from a head; it adds no class.")
    ] = None,
    workers: Annotated[
        int | None, option("Worker processes, one thread each [one per core; GPU: 1].", min=1)
    ] = None,
) -> None:
    """Learn your own images or tables: an exact linear head on fixed features.

    Images lie in one folder per class. Tables have a column with the class, or with a number to
    predict (--target); a parquet column may hold lists, such as embeddings. The result is the same
    to the bit for every order of the data and number of workers.

    Example: orderless fit --data photos --features lite0 --out head.safetensors
    """
    from ..heads import Head, Recipe
    from ..heads.survey import survey
    from .progress import Countdown

    files = open_files(data, out)
    of_tables = {"label": label, "target": target, "columns": columns}
    if like is not None:
        of_maps = {"features": features, "count": count, "size": size, "ledger": ledger or None}
        refuse(f"it is that of {like}", **of_maps, **of_tables)
        recipe = Head.load(like).recipe
    else:
        kind = choose_features(files, features, count)
        if files.images:
            refuse(f"it is for tables, and {data} holds images", **of_tables)
            size = size or (224 if kind.startswith("lite") else 32)
        else:
            refuse(f"it is for images, and {data} holds tables", size=size)
        recipe = Recipe(
            kind,
            count or 0,
            size=size or 0,
            label="" if files.images else target or label or "label",
            columns=[name.strip() for name in columns.split(",")] if columns else [],
            ledger=ledger,
        )
        recipe = survey(recipe, files, values=target is not None)
    if sum(path.stat().st_size for path in files.paths) < FEW_BYTES:
        workers = 1
    with Countdown() as bar:
        head = Head.fit(recipe, files, workers, bar.of(files))
    head.save(out)
    typer.echo(f"wrote {out}: {summary(head)}")


def choose_features(files: Files, features: str | None, count: int | None) -> str:
    """The kind of features for images or tables."""
    from ..heads.head import OF_IMAGES, OF_TABLES

    kinds = OF_IMAGES if files.images else OF_TABLES
    kind = features or kinds[0]
    if kind not in kinds:
        raise UserError(
            f"--features of {files.kind} must be one of {', '.join(kinds)}, got {kind!r}"
            f"{did_you_mean(kind, kinds)}"
        )
    if kind == "linear":
        refuse("linear features are the numbers themselves", count=count)
    if kind == "leaves" and count and count % 8:
        raise UserError(f"--count must be a multiple of 8 with leaves, got {count}")
    return kind


def summary(head: Head) -> str:
    """What a head has learned from, and how well it predicts what it has not seen."""
    from ..heads.survey import FEW

    recipe = head.recipe
    samples = head.exact.samples
    parts = [f"{samples:,} samples"]
    parts += listed("columns", recipe.columns) + listed("classes", recipe.classes)
    right, kept = head.left_out()
    if recipe.spread:
        parts.append(f"values of {recipe.label}, of standard error {head.noise():.3g}")
    elif kept:
        parts.append(f"{right / kept:.1%} of {kept:,} are right when left out")
        if recipe.calibration == 1 and samples > FEW:
            parts.append(
                f"all samples are kept, as in the head that it is like, which began with at most "
                f"{FEW:,}: for a far smaller file begin with more, of which one in 16 is kept"
            )
    return "\n".join(parts)


def listed(noun: str, names: list[str]) -> list[str]:
    """A line with the number of some things and the first of their names; none for nothing."""
    more = ", ..." if len(names) > SHOWN else ""
    return [f"{noun} ({len(names)}): {', '.join(names[:SHOWN])}{more}"] if names else []
