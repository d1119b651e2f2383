"""`orderless fit`: fit an exact head to a user's own images or tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError
from . import options
from .options import PATH, option

if TYPE_CHECKING:
    from ..distributed.head import Recipe
    from ..files import Files

Data = Annotated[Path, option("A folder of images or tables, a CSV or a parquet file.")]
MAPS = ("auto", "relu", "leaves", "convolution", "lite0", "lite1", "lite2")


def fit(
    data: Data,
    out: Annotated[Path, option("File for the head.", **PATH)],
    features: Annotated[str, option(f"Feature map: {', '.join(MAPS)}.")] = "auto",
    count: Annotated[
        int | None, option("Features per map [512; images: 1536; lite: all].", min=8, max=10**5)
    ] = None,
    maps: Annotated[int, option("Random maps to average over.", min=1, max=1000)] = 1,
    seed: Annotated[int, option("Seed of the maps.", min=0, max=2**31 - 1)] = 0,
    size: Annotated[
        int | None, option("Images are resized to SIZE x SIZE [32; lite: 224].", min=8, max=1024)
    ] = None,
    label: Annotated[str, option("Tables: column with the class.")] = "label",
    target: Annotated[
        str | None, option("Tables: column with a number to predict instead of a class.")
    ] = None,
    columns: Annotated[
        str | None, option("Tables: comma-separated columns to learn from [all others].")
    ] = None,
    like: Annotated[Path | None, option("Take maps, classes and scales from this head.")] = None,
    workers: options.Workers = None,
    keep: Annotated[bool, option("Keep OUT.parts, to add data later.", name="--keep")] = False,
) -> None:
    """Learn your own images or tables: an exact linear head on fixed features.

    Images lie in one folder per class. Tables have a column with the class, or with a number to
    predict (--target). The result is the same to the bit for every order of the data and number of
    workers. The same command resumes a fit that was stopped.

    Example: orderless fit --data photos --features lite0 --out head.safetensors
    """
    import torch

    from ..distributed import fit as fit_shards
    from ..distributed.head import Head, Recipe, look_through
    from ..files import check_output, find_files
    from .progress import Countdown

    torch.set_num_threads(1)  # the bits of a head depend on it; each worker has one thread
    files = find_files(data)
    check_output(out, *files.paths)
    chosen = [name.strip() for name in columns.split(",")] if columns else []
    unread: Any = {"target": target, "columns": columns} if files.images else {"size": size}
    for name, value in unread.items():
        if value is not None:
            ours, theirs = ("tables", "images") if files.images else ("images", "tables")
            raise UserError(f"--{name} is for {ours}, and {data} holds {theirs}: leave it out")
    if like is not None:
        recipe = Head.load(like).recipe
        asked: Any = {"features": features, "count": count, "size": size, "columns": chosen}
        asked |= {} if recipe.spread else {"label": label}
        refuse_others(like, recipe, **asked, maps=maps, seed=seed, target=target)
    else:
        kind, pixels, default = choose(features, files.images, size)
        if kind in ("leaves", "convolution") and (count or 0) % 8:
            raise UserError(f"--count must be a multiple of 8 with {kind}, got {count}")
        name = "" if files.images else target or label
        found = look_through(files, name, chosen, values=target is not None)
        wanted = default if count is None else count
        recipe = Recipe(kind, wanted, maps, seed, size=pixels, label=name, **found)
    check(recipe, files)
    parts = out.with_name(f"{out.name}.parts")
    with Countdown() as bar:
        rb = fit_shards(
            recipe.make_filter,
            recipe.shards(files),
            read=recipe.read,
            directory=parts,
            workers=workers,
            progress=bar.tell,
        )
    Head(recipe, rb).save(out)
    if not keep:
        shutil.rmtree(parts)
    answers = f"values of {recipe.label}" if recipe.spread else f"{len(recipe.classes)} classes"
    typer.echo(
        f"wrote {out}: {rb.samples:,} samples, {answers}, log evidence {float(rb.log_evidence):.6g}"
    )


def choose(features: str, images: bool, size: int | None) -> tuple[str, int, int]:
    """The kind of map, the size of images (0 for tables) and the default number of features."""
    kind = ("leaves" if images else "relu") if features == "auto" else features
    if kind not in MAPS:
        raise UserError(f"--features must be one of {', '.join(MAPS)}, got {features!r}")
    if not images and kind != "relu":
        raise UserError(f"--features {kind} is for images: tables take relu")
    if not images:
        return kind, 0, 512
    lite = kind.startswith("lite")
    return kind, size or (224 if lite else 32), 0 if lite else 1536


def refuse_others(like: Path, recipe: Recipe, **asked: Any) -> None:
    """Refuse options that contradict the head of --like; defaults contradict nothing."""
    head = {**vars(recipe), "target": recipe.label if recipe.spread else None}
    usual = {"features": "auto", "maps": 1, "seed": 0, "columns": [], "label": "label"}
    for name, value in asked.items():
        if value not in (usual.get(name), head[name]):
            raise UserError(f"{like} has {name} {head[name]}, not {value}: leave out --{name}")


def check(recipe: Recipe, files: Files) -> None:
    """Refuse a head for the other kind of data, and fewer than two classes."""
    if bool(recipe.size) != files.images:
        ours, theirs = ("images", "tables") if recipe.size else ("tables", "images")
        raise UserError(f"this head is for {ours}, and {files.root} holds {theirs}")
    if len(recipe.classes) < 2 and not recipe.spread:
        where = "a folder for each" if files.images else f"named in the column {recipe.label!r}"
        found = ", ".join(recipe.classes) or "none"
        raise UserError(f"{files.root} must have at least two classes, {where}, got {found}")
