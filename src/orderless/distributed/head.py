"""A head on a user's own files: how inputs are made of them, the exact filter, and class names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..features import RandomReLU, efficientnet_lite
from ..filters import RaoBlackwellizedFilter
from ..methods.learners.exact import feature_map
from ..particles import Ensemble
from ..scenarios import DataError
from ..scenarios.augment import to_symmetric
from ..scenarios.files import Files, label_of, numbers, read_images, read_table
from ..storage import load, save
from ..storage.typed import Misfit, as_json, decode

TOGETHER = 256  # images of one part
Samples = tuple[list[str], Tensor, list[str | None]]  # names, inputs and labels


@dataclass(frozen=True)
class Recipe:
    """All that is decided before the first sample: maps, classes, sizes and scales."""

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

    def __post_init__(self) -> None:
        numbers = {"maps": (1, 1000), "count": (0, 10**5), "size": (0, 1024), "seed": (0, 2**31)}
        for name, (least, most) in numbers.items():
            if not least <= getattr(self, name) <= most:
                value = getattr(self, name)
                raise ValueError(f"{name} must lie between {least} and {most}, got {value}")
        if not len(self.columns) == len(self.mean) == len(self.scale) or 0.0 in self.scale:
            raise ValueError("a recipe needs a mean and a scale other than 0 for every column")

    def make_filter(self) -> RaoBlackwellizedFilter:
        options: Any = {"weights": "uniform", "classes": len(self.classes)}
        if self.features.startswith("lite"):
            backbone = efficientnet_lite(int(self.features[4:]), project=self.count or None)
            if not self.count:
                return RaoBlackwellizedFilter(backbone, **options)
            make: Any = backbone
        elif self.size:
            make = feature_map(self.features, (3, self.size, self.size), self.count)
        else:
            make = partial(RandomReLU, len(self.columns), self.count, bias_scale=0.5)
        return RaoBlackwellizedFilter(Ensemble(make, self.maps, seed=self.seed), **options)

    def shards(self, files: Files) -> list[Any]:
        """Tables one by one, images some hundred together."""
        if not files.images:
            return list(files.paths)
        pairs = [(path, label_of(path, files.root)) for path in files.paths]
        return [pairs[start : start + TOGETHER] for start in range(0, len(pairs), TOGETHER)]

    def samples(self, shard: Any) -> Iterator[Samples]:
        """The samples of a shard, with or without labels."""
        if self.size:
            x = read_images([path for path, _ in shard], self.size)
            x = x if self.features.startswith("lite") else to_symmetric(x)
            yield [str(path) for path, _ in shard], x, [label for _, label in shard]
            return
        for frame in read_table(shard, self.label):
            x = numbers(frame, self.columns, shard) - np.array(self.mean)
            names = [f"{shard}:{row + 2}" for row in frame.index]
            labels = frame[self.label] if self.label in frame else [None] * len(frame)
            texts = [label if isinstance(label, str) else None for label in labels]
            yield names, torch.from_numpy(x / np.array(self.scale)), texts

    def read(self, shard: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """For `fit`."""
        codes = {name: code for code, name in enumerate(self.classes)}
        for names, x, labels in self.samples(shard):
            for name, label in zip(names, labels, strict=True):
                if label not in codes:
                    known = ", ".join(self.classes[:5])
                    raise DataError(f"{name} has the label {label!r}, which is none of {known} ...")
            yield x, torch.tensor([codes[str(label)] for label in labels])


@dataclass(frozen=True)
class Head:
    """What `orderless fit` writes and `orderless predict` reads."""

    recipe: Recipe
    filter: RaoBlackwellizedFilter

    def save(self, path: Path) -> None:
        save(path, {"recipe": as_json(self.recipe), "filter": self.filter.state_dict()})

    @classmethod
    def load(cls, path: Path) -> Head:
        state = load(path)
        try:
            recipe = decode(Recipe, state["recipe"])
        except (KeyError, TypeError, Misfit):  # what else is wrong says so itself
            raise ValueError(f"{path} was not written by `orderless fit`") from None
        rb = recipe.make_filter()
        rb.load_state_dict(state["filter"])
        return cls(recipe, rb)


def look_through(
    files: Files, label: str, columns: list[str]
) -> tuple[list[str], list[str], list[float], list[float]]:
    """Classes and, for tables, columns, means and scales: the same in any order of files and rows.

    Mean and deviation come from sums of fractions, which have no rounding.
    """
    if files.images:
        found = {label_of(path, files.root) for path in files.paths} - {None}
        return sorted(str(name) for name in found), [], [], []
    classes: set[str] = set()
    count, sums, squares = 0, np.array(Fraction()), np.array(Fraction())
    for path in files.paths:
        for frame in read_table(path, label):
            if label not in frame:
                raise DataError(
                    f"{path} has no column {label!r} for the labels; it has {', '.join(frame)}: "
                    "name it with --label"
                )
            if frame[label].isna().any():
                raise DataError(f"{path} has a row without a label in column {label!r}")
            columns = columns or [name for name in frame if name != label]
            x = numbers(frame, columns, path)
            classes |= set(frame[label])
            count += len(x)
            sums = sums + _exact_sums(x)
            squares = squares + _exact_sums(np.square(x))
    if not count:
        raise DataError(f"{files.root} holds tables without a single row")
    mean, scale = [], []
    for total, square in zip(sums, squares, strict=True):
        variance = float(square / count - (total / count) ** 2)
        mean.append(float(total / count))
        scale.append(variance**0.5 if variance > 1e-24 * mean[-1] ** 2 else 1.0)  # of a constant
    return sorted(classes), columns, mean, scale


def _exact_sums(x: np.ndarray) -> np.ndarray:
    """The sums of columns `[B, K]` as fractions `[K]`."""
    mantissa, exponent = np.frexp(x)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    totals = np.full(x.shape[1], Fraction())
    for power in np.unique(exponent):
        chosen = np.where(exponent == power, whole, 0)
        # two halves: sums of whole numbers of 53 bits would not fit 64
        high, low = (chosen >> 26).sum(0), (chosen & (2**26 - 1)).sum(0)
        pairs = zip(high.tolist(), low.tolist(), strict=True)
        unit = Fraction(2) ** (int(power) - 53)
        totals += np.array([(2**26 * h + v) * unit for h, v in pairs])
    return totals
