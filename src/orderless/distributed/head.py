"""A head for a user's own files: the recipe that reads them, and the exact filter.

It predicts classes, or values of a numeric column in units of `spread` around `center`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from orderless_lab.methods.learners.exact import feature_map
from orderless_lab.scenarios.augment import to_symmetric
from orderless_lab.storage.typed import Misfit, as_json, decode

from ..ensemble import Ensemble
from ..errors import DataError, UserError
from ..exact import ExactHead
from ..features import RandomReLU, efficientnet_lite
from ..files import Files, label_of, numbers, read_images, read_table
from ..io import load, save

TOGETHER = 256  # images per part
TARGET_LIMIT = 16.0  # largest distance of a value from the center, in spreads
Samples = tuple[list[str], Tensor, list[Any]]  # names, inputs, and labels (None: unknown)


@dataclass(frozen=True)
class Recipe:
    """Everything that is fixed before the first sample: maps, classes, sizes and scales."""

    features: str
    count: int
    maps: int
    seed: int
    classes: list[str]
    size: int = 0  # of images
    label: str = ""
    columns: list[str] = field(default_factory=list)  # of tables
    mean: list[float] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    center: float = 0.0  # of values
    spread: float = 0.0  # of values; 0 for classes

    def __post_init__(self) -> None:
        numbers = {"maps": (1, 1000), "count": (0, 10**5), "size": (0, 1024), "seed": (0, 2**31)}
        for name, (least, most) in numbers.items():
            if not least <= getattr(self, name) <= most:
                value = getattr(self, name)
                raise UserError(f"{name} must lie between {least} and {most}, got {value}")
        if not len(self.columns) == len(self.mean) == len(self.scale) or 0.0 in self.scale:
            raise UserError("a recipe needs a mean and a scale other than 0 for every column")
        if self.spread < 0.0:
            raise UserError(f"the spread of values cannot be negative, got {self.spread}")

    def make_filter(self) -> ExactHead:
        kind = {"targets": "values"} if self.spread else {"classes": len(self.classes)}
        options: Any = {"weights": "uniform", **kind}
        if self.features.startswith("lite"):
            backbone = efficientnet_lite(int(self.features[4:]), project=self.count or None)
            if not self.count:
                return ExactHead(backbone, **options)
            make: Any = backbone
        elif self.size:
            make = feature_map(self.features, (3, self.size, self.size), self.count)
        else:
            make = partial(RandomReLU, len(self.columns), self.count, bias_scale=0.5)
        return ExactHead(Ensemble(make, self.maps, seed=self.seed), **options)

    def shards(self, files: Files) -> list[Any]:
        """One shard per table, or per `TOGETHER` images."""
        if not files.images:
            return list(files.paths)
        pairs = [(path, label_of(path, files.root)) for path in files.paths]
        return [pairs[start : start + TOGETHER] for start in range(0, len(pairs), TOGETHER)]

    def samples(self, shard: Any) -> Iterator[Samples]:
        """Yield the samples of a shard; labels may be None."""
        if self.size:
            x = read_images([path for path, _ in shard], self.size)
            x = x if self.features.startswith("lite") else to_symmetric(x)
            yield [str(path) for path, _ in shard], x, [label for _, label in shard]
            return
        for frame in read_table(shard, "" if self.spread else self.label):
            x = numbers(frame, self.columns, shard) - np.array(self.mean)
            names = [f"{shard}:{row + 2}" for row in frame.index]
            labels: list[Any] = [None] * len(frame)
            if self.label in frame and self.spread:
                known = frame[self.label].notna()
                values = numbers(frame.fillna({self.label: 0.0}), [self.label], shard)[:, 0]
                labels = [v if there else None for v, there in zip(values, known, strict=True)]
            elif self.label in frame:
                labels = [each if isinstance(each, str) else None for each in frame[self.label]]
            yield names, torch.from_numpy(x / np.array(self.scale)), labels

    def read(self, shard: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of a shard, for `fit`."""
        codes = {name: code for code, name in enumerate(self.classes)}
        for names, x, labels in self.samples(shard):
            if self.spread:
                yield x, self._scaled(names, labels)
                continue
            for name, label in zip(names, labels, strict=True):
                if label not in codes:
                    known = ", ".join(self.classes[:5])
                    raise DataError(f"{name} has the label {label!r}, which is none of {known} ...")
            yield x, torch.tensor([codes[str(label)] for label in labels])

    def _scaled(self, names: list[str], values: list[Any]) -> Tensor:
        if None in values:
            raise DataError(f"{names[values.index(None)]} has no value in column {self.label!r}")
        scaled = (torch.tensor(values, dtype=torch.float64) - self.center) / self.spread
        place = int(scaled.abs().argmax())
        if scaled[place].abs() > TARGET_LIMIT:
            raise DataError(
                f"{names[place]} has the value {values[place]:g}, which lies too far from those of "
                f"the head's first data ({self.center:g} +- {self.spread:g}): fit a new head"
            )
        return scaled


@dataclass(frozen=True)
class Head:
    """A fitted head, as `orderless fit` writes it and `orderless predict` reads it."""

    recipe: Recipe
    filter: ExactHead

    def save(self, path: Path) -> None:
        save(path, {"recipe": as_json(self.recipe), "filter": self.filter.state_dict()})

    @classmethod
    def load(cls, path: Path) -> Self:
        state = load(path)
        try:
            recipe = decode(Recipe, state["recipe"])
        except (KeyError, TypeError, Misfit):  # other errors have their own messages
            raise UserError(f"{path} was not written by `orderless fit`") from None
        rb = recipe.make_filter()
        rb.load_state_dict(state["filter"])
        return cls(recipe, rb)


def look_through(
    files: Files, label: str, columns: list[str], values: bool = False
) -> dict[str, Any]:
    """Find the classes or the scale of the values and, for tables, the columns and their scales.

    The result does not depend on the order of files and rows, because sums of fractions are exact.
    """
    if files.images:
        folders = {label_of(path, files.root) for path in files.paths} - {None}
        return {"classes": sorted(str(name) for name in folders)}
    if label in columns:
        raise DataError(f"column {label!r} is to be predicted: leave it out of --columns")
    classes: set[str] = set()
    count, sums, squares = 0, np.array(Fraction()), np.array(Fraction())
    low, high = np.array(np.inf), np.array(-np.inf)
    for path in files.paths:
        for frame in read_table(path, "" if values else label):
            if label not in frame:
                raise DataError(
                    f"{path} has no column {label!r} for the {'values' if values else 'labels'}; "
                    f"it has {', '.join(frame)}: name it with --{'target' if values else 'label'}"
                )
            if not values and frame[label].isna().any():
                line = frame.index[frame[label].isna()][0] + 2  # after the header
                raise DataError(f"{path} has no label in column {label!r}, line {line}")
            if not len(frame):
                continue
            columns = columns or [name for name in frame if name != label]
            x = numbers(frame, [*columns, label] if values else columns, path)
            classes |= set() if values else set(frame[label])
            count += len(x)
            sums, squares = sums + _exact_sums(x), squares + _exact_squares(x)
            low, high = np.minimum(low, x.min(0)), np.maximum(high, x.max(0))
    if not count:
        raise DataError(f"{files.root} holds no row to learn from")
    mean, scale = [], []
    for total, square in zip(sums, squares, strict=True):
        variance = float(square / count - (total / count) ** 2)
        mean.append(float(total / count))
        scale.append(variance**0.5 if variance > 1e-24 * mean[-1] ** 2 else 1.0)  # 1 for a constant
    inputs = {"classes": sorted(classes), "columns": columns, "mean": mean, "scale": scale}
    if not values:
        return inputs
    center, spread = mean.pop(), scale.pop()
    # for a heavy tail the grid becomes coarser instead of raising an error
    reach = float(max(center - low[-1], high[-1] - center))
    return {**inputs, "center": center, "spread": max(spread, reach / (0.99 * TARGET_LIMIT))}


def _exact_squares(x: np.ndarray) -> np.ndarray:
    """The exact sums of the squared columns of x `[B, K]`: x = h + l, with squares of 53 bits."""
    high = (x * (2.0**27 + 1)) - (x * (2.0**27 + 1) - x)  # Veltkamp's splitting
    low = x - high
    return _exact_sums(high * high) + 2 * _exact_sums(high * low) + _exact_sums(low * low)


def _exact_sums(x: np.ndarray) -> np.ndarray:
    """The exact sums of the columns of x `[B, K]`, as fractions `[K]`."""
    mantissa, exponent = np.frexp(x)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    totals = np.full(x.shape[1], Fraction())
    for power in np.unique(exponent):
        chosen = np.where(exponent == power, whole, 0)
        # in two halves, because sums of 53-bit integers would overflow 64 bits
        high, low = (chosen >> 26).sum(0), (chosen & (2**26 - 1)).sum(0)
        pairs = zip(high.tolist(), low.tolist(), strict=True)
        unit = Fraction(2) ** (int(power) - 53)
        totals += np.array([(2**26 * h + v) * unit for h, v in pairs])
    return totals
