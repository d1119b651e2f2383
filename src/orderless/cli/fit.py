"""`orderless fit`: fit an exact head to a user's own images or tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError, did_you_mean
from . import options
from .options import PATH, check_output, option, refuse

if TYPE_CHECKING:
    from ..heads import Head, Recipe
    from ..heads.files import Files
    from ..heads.survey import Survey

FEATURES = (
    "relu, linear (tables); leaves, convolution, lite0, lite1, lite2 (images) [relu; leaves]."
)
SHOWN = 10  # names of classes or columns in a line
FEW_ROWS = 20_000  # for which processes would take longer to begin than to work
FEW_IMAGES = 500
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
    from ..heads import Head
    from ..heads.files import find_files
    from ..heads.survey import survey
    from .progress import Countdown

    torch.set_num_threads(1)  # the bits of some features depend on it
    files = find_files(data)
    check_output(out, *files.paths)
    maps_asked = {"features": features, "count": count, "maps": maps, "seed": seed, "size": size}
    columns_asked = {"label": label, "target": target, "columns": columns}
    if like is not None:
        refuse(f"it is that of {like}", **maps_asked, **columns_asked, ledger=ledger or None)
        recipe = Head.load(like).recipe
        check_kind(recipe, files)
        found = survey(files, recipe.label, recipe.columns, recipe.spread > 0.0)
    else:
        chosen = [name.strip() for name in columns.split(",")] if columns else []
        if files.images:
            refuse(f"it is for tables, and {data} holds images", **columns_asked)
        else:
            refuse(f"it is for images, and {data} holds tables", size=size)
        name = target or label or "label"
        found = survey(files, name, chosen, target is not None)
        if len(found.classes) < 2 and target is None:
            where = "a folder for each" if files.images else f"named in the column {name!r}"
            names = ", ".join(found.classes) or "none"
            raise UserError(f"{data} must have at least two classes, {where}, got {names}")
        recipe = plan(found, files, name, ledger, **maps_asked)
    if found.samples < (FEW_IMAGES if files.images else FEW_ROWS):
        workers = 1
    with Countdown() as bar:
        bar.tell(0, found.samples, f"{data}")
        exact = fit_shards(
            recipe.make_head(),
            recipe.portions(files),
            recipe.read,
            workers=workers,
            progress=lambda done: bar.tell(int(done), found.samples, f"{data}"),
        )
    head = Head(recipe, exact)
    head.save(out)
    typer.echo(f"wrote {out}: {summary(head)}")


def plan(
    found: Survey, files: Files, label: str, ledger: bool, *, features: Any, size: Any, **asked: Any
) -> Recipe:
    """The recipe for what was found, with defaults for what was not asked."""
    from ..heads import Recipe
    from ..heads.recipe import MAPS

    kind = features or ("leaves" if files.images else "relu")
    if kind not in MAPS:
        known = ", ".join(MAPS)
        guess = did_you_mean(kind, MAPS)
        raise UserError(f"--features must be one of {known}, got {kind!r}{guess}")
    if kind != "relu" and files.images == (kind == "linear"):
        ours, theirs = ("tables", "images") if files.images else ("images", "tables")
        raise UserError(f"--features {kind} is for {ours}, and {files.root} holds {theirs}")
    if kind == "linear":
        refuse("linear features are the numbers themselves", **asked)
    usual = {"relu": 1536 if files.images else min(4096, max(1024, 4 * len(found.mean)))}
    usual |= {"leaves": 1536, "convolution": 1536}
    count = usual.get(kind, 0) if asked["count"] is None else asked["count"]
    if kind in ("leaves", "convolution") and count % 8:
        raise UserError(f"--count must be a multiple of 8 with {kind}, got {count}")
    pixels = size or (224 if kind.startswith("lite") else 32)
    return Recipe(
        features=kind,
        count=count,
        maps=asked["maps"] or 1,
        seed=asked["seed"] or 0,
        classes=found.classes,
        size=pixels if files.images else 0,
        label="" if files.images else label,
        columns=found.columns,
        mean=found.mean,
        scale=found.scale,
        center=found.center,
        spread=found.spread,
        calibration=1 if found.samples <= ALL_KEPT else 16,
        ledger=ledger,
    )


def check_kind(recipe: Recipe, files: Files) -> None:
    """Refuse a head for the other kind of data."""
    if bool(recipe.size) != files.images:
        ours, theirs = ("images", "tables") if recipe.size else ("tables", "images")
        raise UserError(f"this head is for {ours}, and {files.root} holds {theirs}")


def summary(head: Head) -> str:
    """What a head has learned from, and how well it predicts what it has not seen."""
    recipe = head.recipe
    lines = [f"{head.exact.samples:,} samples"]
    if recipe.columns:
        lines.append(listed("column", recipe.columns))
    if recipe.spread:
        lines.append(f"values of {recipe.label}, predicted up to {head.noise():.3g} (one sigma)")
        return "\n".join(lines)
    lines.append(listed("class", recipe.classes))
    right, kept = head.left_out()
    if kept:
        lines.append(f"{100 * right / kept:.1f}% of {kept:,} samples are right when left out")
    return "\n".join(lines)


def listed(noun: str, names: list[str]) -> str:
    """The number of some things and the first of their names."""
    plural = noun if len(names) == 1 else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    more = ", ..." if len(names) > SHOWN else ""
    return f"{len(names)} {plural}: {', '.join(names[:SHOWN])}{more}"
