"""A first look through all files: classes, columns and scales, before anything is learned."""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import DataError
from ..scaling import ExactScaler
from .files import Files, class_folders, column_of, numbers, read_table
from .head import TARGET_LIMIT, Recipe

MANY = 10  # rows whose numbers are hardly a permutation of 1, 2, ... by chance
FEW = 4096  # samples all of which are kept, to tell how many are right when left out


def survey(recipe: Recipe, files: Files, values: bool = False) -> Recipe:
    """The recipe with the classes, or the center and spread of values, of a user's data, and with
    the columns and scales of tables; the order of files and rows does not matter."""
    if files.images:
        samples = len(files.paths)
        found = replace(recipe, classes=class_folders(files))
    elif recipe.label in recipe.columns:
        raise DataError(f"column {recipe.label!r} is to be predicted: leave it out of --columns")
    else:
        samples, found = _look_through(recipe, files, values)
    if not values and len(found.classes) < 2:
        where = f"in the column {recipe.label!r}" if recipe.label else "a folder for each"
        names = ", ".join(found.classes) or "none"
        raise DataError(f"{files.root} must have at least two classes, {where}, got {names}")
    return replace(found, calibration=1 if samples <= FEW else 16)


def _look_through(recipe: Recipe, files: Files, values: bool) -> tuple[int, Recipe]:
    """The number of rows, and the recipe for tables."""
    label = recipe.label
    columns = recipe.columns
    classes: set[str] = set()
    widths: list[int] = []
    scaler = ExactScaler()
    counting: Any = True  # [D], whether each row has one more than the row before
    whole: Any = True  # [D], whether all numbers are whole
    for path in files.paths:
        for frame in read_table(path, "" if values else label):
            columns = columns or _to_learn_from(list(frame), label)
            answers = column_of(frame, label, path)
            parts = [numbers(frame, name, path) for name in columns]
            if values:
                parts.append(numbers(frame, label, path))
            elif answers.isna().any():
                line = frame.index[answers.isna()][0] + 2  # after the header
                raise DataError(f"{path} has no label in column {label!r}, line {line}")
            else:
                classes |= set(answers)
            wide = [part.shape[1] for part in parts]
            if widths not in ([], wide):
                raise DataError(f"{path} has lists of another length than the rows before it")
            widths = wide
            rows = np.concatenate(parts, axis=1)
            scaler.add(rows)
            counting = counting & (np.diff(rows, axis=0) == 1.0).all(axis=0)
            whole = whole & (rows % 1 == 0).all(axis=0)
    samples = scaler.sixteenths // 16
    if not samples:
        raise DataError(f"{files.root} holds no row to learn from")
    mean = scaler.mean.tolist()
    scale = scaler.scale.tolist()
    constant = scaler.low == scaler.high
    numbering = counting & (samples > 2) | whole & _without_gap(scaler, samples)
    firsts = np.cumsum([0, *widths])  # of every column's numbers
    for name, first, width in zip(columns, firsts, widths, strict=False):
        if width == 1:
            _remark(name, constant[first], numbering[first])
    center = spread = 0.0
    if values:
        center = mean.pop()
        # for a heavy tail the grid becomes coarser instead of raising an error
        reach = float(max(center - scaler.low[-1], scaler.high[-1] - center))
        spread = max(scale.pop(), reach / (0.99 * TARGET_LIMIT))
    found = replace(recipe, columns=columns, mean=mean, scale=scale, classes=sorted(classes))
    return samples, replace(found, center=center, spread=spread)


def _without_gap(scaler: ExactScaler, samples: int) -> Any:
    """Whether the range, mean and deviation of every column [D] are those of so many whole numbers
    that follow each other, in any order."""
    middle = (scaler.low + scaler.high) / 2
    deviation = math.sqrt((samples**2 - 1) / 12)
    return (
        (samples >= MANY)
        & (scaler.high - scaler.low == samples - 1)
        & (scaler.mean == middle)
        & np.isclose(scaler.scale, deviation, rtol=1e-12, atol=0.0)
    )


class ColumnWarning(UserWarning):
    """A column that looks like none to learn from."""

    numbers_tell_apart = True


def _to_learn_from(names: list[str], label: str) -> list[str]:
    """All columns but the answers and those without a name, which pandas calls "Unnamed: 0"."""
    nameless = [name for name in names if name.startswith("Unnamed: ")]
    for name in nameless:
        warnings.warn(
            f"column {name!r} is left out: it has no name, like the index that pandas writes; "
            "--columns names columns to learn from",
            ColumnWarning,
            3,
        )
    return [name for name in names if name != label and name not in nameless]


def _remark(name: str, constant: bool, numbering: bool) -> None:
    """Warn of a column that a head should not learn from."""
    if constant:
        remark = "has one value only"
    elif numbering:
        remark = "numbers the rows"
    else:
        return
    warnings.warn(f"column {name!r} {remark}: leave it out with --columns", ColumnWarning, 3)
