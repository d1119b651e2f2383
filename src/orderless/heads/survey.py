"""A first look through all files: classes, columns and scales, before anything is learned."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, did_you_mean
from ..scaling import ExactScaler
from .files import Files, class_folders, numbers, read_table

TARGET_LIMIT = 16.0  # largest distance of a value from the center, in spreads


class Survey(NamedTuple):
    """The samples and their classes; of tables the columns, and the mean and scale of each number;
    of values their center and spread."""

    samples: int
    classes: list[str]
    columns: list[str] = []
    mean: list[float] = []
    scale: list[float] = []
    center: float = 0.0
    spread: float = 0.0

    def contents(self) -> dict[str, Any]:
        """All but the number of samples."""
        return {name: value for name, value in self._asdict().items() if name != "samples"}


def survey(files: Files, label: str, columns: list[str], values: bool) -> Survey:
    """Look through images or tables; the result does not depend on the order of files and rows."""
    if files.images:
        return _checked(Survey(len(files.paths), class_folders(files)), "a folder for each", files)
    if label in columns:
        raise DataError(f"column {label!r} is to be predicted: leave it out of --columns")
    classes: set[str] = set()
    widths: list[int] = []
    rows = Rows()
    for path in files.paths:
        rows.above = None
        for frame in _labelled(path, label, values):
            columns = columns or [name for name in frame if name != label]
            parts = numbers(frame, [*columns, label] if values else columns, path)
            wide = [part.shape[1] for part in parts]
            if wide != (widths or wide):
                raise DataError(f"{path} has lists of another length than the rows before it")
            widths = wide
            classes |= set() if values else set(frame[label])
            rows.look_at(np.concatenate(parts, axis=1))
    if not rows.samples:
        raise DataError(f"{files.root} holds no row to learn from")
    mean, scale = rows.mean.tolist(), rows.scale.tolist()
    center = spread = 0.0
    if values:
        center = mean.pop()
        # for a heavy tail the grid becomes coarser instead of raising an error
        reach = max(center - rows.low[-1], rows.high[-1] - center)
        spread = max(scale.pop(), float(reach) / (0.99 * TARGET_LIMIT))
    first = np.cumsum([0, *widths])  # of every column's numbers
    rows.remark(
        {name: int(n) for name, n, w in zip(columns, first, widths, strict=False) if w == 1}
    )
    found = Survey(rows.samples, sorted(classes), columns, mean, scale, center, spread)
    return found if values else _checked(found, f"named in the column {label!r}", files)


def _checked(found: Survey, where: str, files: Files) -> Survey:
    """Refuse fewer than two classes."""
    if len(found.classes) < 2:
        names = ", ".join(found.classes) or "none"
        raise DataError(f"{files.root} must have at least two classes, {where}, got {names}")
    return found


def _labelled(path: Path, label: str, values: bool) -> Iterator[Any]:
    """The rows of a table, all of which must have an answer."""
    for frame in read_table(path, "" if values else label):
        if label not in frame:
            what, option = ("values", "target") if values else ("labels", "label")
            raise DataError(
                f"{path} has no column {label!r} for the {what}{did_you_mean(label, frame)}; it "
                f"has {', '.join(frame)}: name it with --{option}"
            )
        if not values and frame[label].isna().any():
            line = frame.index[frame[label].isna()][0] + 2  # after the header
            raise DataError(f"{path} has no label in column {label!r}, line {line}")
        if len(frame):
            yield frame


class Rows(ExactScaler):
    """Numbers in D columns: their exact scales, and whether they count the rows."""

    above: Any = None  # the row before, in the same file
    counting: Any = True  # [D]

    @property
    def samples(self) -> int:
        return self.sixteenths // 16

    def look_at(self, rows: np.ndarray) -> None:
        """Add rows `[B, D]` that come after those before."""
        before = rows[:1] - 1.0 if self.above is None else self.above
        steps = np.diff(rows, axis=0, prepend=before)
        self.counting = self.counting & (steps == 1.0).all(0)
        self.above = rows[-1:]
        self.add(rows)

    def remark(self, columns: dict[str, int]) -> None:
        """Warn of columns, by their places, that a head should not learn from."""
        for name, place in columns.items():
            if self.low[place] == self.high[place]:
                remark = "has one value only"
            elif self.counting[place] and self.samples > 2:
                remark = "counts the rows"
            else:
                continue
            text = f"column {name!r} {remark}: leave it out with --columns"
            warnings.warn(text, ColumnWarning, stacklevel=2)


class ColumnWarning(UserWarning):
    """A column that looks like none to learn from."""

    numbers_tell_apart = True
