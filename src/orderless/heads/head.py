"""A head on disk: a recipe that reads a user's own data, and an exact head, in one file.

The recipe is everything that is fixed before the first sample: maps, classes, sizes and scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from .. import distributed
from ..ensemble import Ensemble
from ..errors import DataError, UserError
from ..exact import ExactHead, Predictive
from ..features import DeadLeaves, RandomReLU, efficientnet_lite
from ..io import INVALID_STATE, load, save
from .files import Files, class_of, numbers, read_images, read_table

TARGET_LIMIT = 16.0  # largest distance of a value from the center, in spreads
TOGETHER = 64  # images in a portion
OF_IMAGES = ("leaves", "lite0", "lite1", "lite2")
OF_TABLES = ("relu", "linear")

Numbers = float | Sequence[float]


class Portion(NamedTuple):
    """Some samples of a file: names, a function that reads them `[B, ...]`, and answers (None if
    unknown)."""

    names: list[str]
    read: Callable[[], Tensor]
    answers: list[Any]


class Scaled(nn.Module):
    """phi((x - mean) / scale) of a feature map phi: the inputs need no scaling of their own.

    Both operations have the same bits on every device, so the map is `exact` if phi is.
    """

    def __init__(self, map: nn.Module, mean: Numbers, scale: Numbers) -> None:
        super().__init__()
        self.map = map
        self.exact = bool(getattr(map, "exact", True))
        self.mean = nn.Parameter(torch.tensor(mean, dtype=torch.float64), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(scale, dtype=torch.float64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.map((x.double() - self.mean) / self.scale)
        return outputs


@dataclass(frozen=True)
class Recipe:
    """How files become samples of an exact head. `survey` completes one for a user's data.

    Images have a `size`, tables have `columns`, and a `mean` and `scale` for each of their numbers.
    Classes are names, in the order of the head's labels; values have a `center` and a `spread`,
    which is 0 for classes. A `count` of 0 is the usual number of features. One sample in
    `calibration` is kept; see `ExactHead`, also for the `ledger`.
    """

    features: str
    count: int = 0
    size: int = 0
    label: str = ""
    columns: list[str] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    center: float = 0.0
    spread: float = 0.0
    calibration: int = 16
    ledger: bool = False

    def make_head(self) -> ExactHead:
        """The exact head without data."""
        return ExactHead(
            Ensemble(partial(_make_map, self), n=1, seed=0),
            classes=len(self.classes) or None,
            targets="values" if self.spread else "classes",
            calibration=self.calibration,
            ledger=self.ledger,
        )

    def portions(self, files: Files) -> Iterator[Portion]:
        """The samples of all files; answers may be None."""
        if files.images != bool(self.size):
            ours = "images" if self.size else "tables"
            raise UserError(f"this head is for {ours}, and {files.root} holds {files.kind}")
        return self._images(files) if self.size else self._rows(files)

    def _images(self, files: Files) -> Iterator[Portion]:
        for start in range(0, len(files.paths), TOGETHER):
            paths = files.paths[start : start + TOGETHER]
            classes = [class_of(path, files.root) for path in paths]
            read = partial(read_images, paths, self.size)
            yield Portion([str(path) for path in paths], read, classes)

    def _rows(self, files: Files) -> Iterator[Portion]:
        for path in files.paths:
            for frame in read_table(path, "" if self.spread else self.label):
                parts = [numbers(frame, name, path) for name in self.columns]
                x = np.concatenate(parts, axis=1)
                if x.shape[1] != len(self.mean):
                    raise DataError(
                        f"{path} has {x.shape[1]} numbers a row, and the head {len(self.mean)}"
                    )
                names = [f"{path}:{row + 2}" for row in frame.index]
                yield Portion(names, partial(torch.from_numpy, x), self._answers(frame, path))

    def _answers(self, frame: Any, path: Path) -> list[Any]:
        """The class or value of every row; None where it is missing."""
        if self.label not in frame:
            return [None] * len(frame)
        known = frame[frame[self.label].notna()]
        answers = known[self.label]
        if self.spread and len(known):
            answers = numbers(known, self.label, path)[:, 0].tolist()
        by_row = dict(zip(known.index, answers, strict=True))
        return [by_row.get(row) for row in frame.index]

    def read(self, portion: Portion) -> tuple[Tensor, Tensor]:
        """A portion's inputs and targets, all of which must be known."""
        return portion.read(), self.targets(portion.answers, portion.names)

    def targets(self, answers: Sequence[Any], names: Sequence[str] = ()) -> Tensor:
        """Names of classes as labels, or values in units of the spread `[B]`."""
        names = names or [f"sample {number}" for number in range(len(answers))]
        labels = {name: label for label, name in enumerate(self.classes)}
        pairs = zip(answers, names, strict=True)
        found = [self._target(answer, name, labels) for answer, name in pairs]
        return torch.tensor(found, dtype=torch.float64 if self.spread else torch.int64)

    def _target(self, answer: Any, name: str, labels: dict[str, int]) -> float:
        """A known class as its label, or a value in units of the spread."""
        if answer is None:
            where = f"in column {self.label!r}" if self.label else "as its folder"
            raise DataError(f"{name} has no {'value' if self.spread else 'class'} {where}")
        if self.spread:
            scaled: float = (answer - self.center) / self.spread
            if abs(scaled) <= TARGET_LIMIT:
                return scaled
            raise DataError(
                f"{name} has the value {answer:g}, which lies too far from those of the head's "
                f"first data ({self.center:g} +- {self.spread:g}): fit a new head"
            )
        if answer in labels:
            return labels[answer]
        raise DataError(
            f"{name} has the label {answer!r}, which is none of "
            f"{', '.join(self.classes[:5])}{', ...' if len(labels) > 5 else ''}: no class "
            "can be added to a head, nor by --like; fit a new one with all classes"
        )


def _make_map(recipe: Recipe) -> nn.Module:
    """A feature map of columns, or of images as bytes."""
    features = recipe.features
    if features.startswith("lite"):
        return efficientnet_lite(int(features[4:]), project=recipe.count or None)
    if features == "leaves":
        return Scaled(DeadLeaves(3, recipe.size, (recipe.count or 1536) // 8), 127.5, 127.5)
    if features == "linear":
        return Scaled(nn.Identity(), recipe.mean, recipe.scale)
    if features == "relu":
        width = len(recipe.mean)
        count = recipe.count or min(4096, max(1024, 4 * width))
        return Scaled(RandomReLU(width, count), recipe.mean, recipe.scale)
    raise UserError(f"there are no features {features!r}: fit the head again")


@dataclass(frozen=True)
class Head:
    """What `orderless fit` writes: a recipe and an exact head whose maps scale their inputs.

    Inputs are raw: rows of the recipe's columns, or images as bytes `[B, 3, size, size]`. Answers
    are names of classes, or values.

    >>> recipe = Recipe("linear", classes=["big", "small"], mean=[5.0, 5.0], scale=[2.0, 2.0])
    >>> monday, tuesday = Head.of(recipe), Head.of(recipe)
    >>> monday.update([[9.0, 8.0], [1.0, 2.0]], ["big", "small"])
    >>> tuesday.update([[8.0, 9.0], [2.0, 1.0]], ["big", "small"])
    >>> both = monday + tuesday
    >>> both.forget([[8.0, 9.0], [2.0, 1.0]], ["big", "small"])
    >>> bool((both.predict([[7.0, 8.0]]) == monday.predict([[7.0, 8.0]])).all())
    True
    """

    recipe: Recipe
    exact: ExactHead

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """A head without data."""
        return cls(recipe, recipe.make_head())

    @classmethod
    def fit(
        cls,
        recipe: Recipe,
        files: Files,
        workers: int | None = None,
        progress: Callable[[float], None] = lambda samples: None,
    ) -> Self:
        """A head with the data of all files, in several processes; see `distributed.fit`."""
        empty = recipe.make_head()
        shards = recipe.portions(files)
        exact = distributed.fit(empty, shards, recipe.read, workers=workers, progress=progress)
        return cls(recipe, exact)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of `save`."""
        state = load(path)
        if not isinstance(state, dict) or not {"recipe", "head"} <= state.keys():
            raise UserError(
                f"{path} was not written by `orderless fit`: load it in Python with ol.load(path, "
                "into=...), an object made as the one that was saved"
            )
        try:
            head = cls.of(Recipe(**state["recipe"]))
            head.exact.load_state_dict(state["head"])
        except INVALID_STATE as error:
            raise DataError(f"{path} holds no head that can be used here: {error}") from None
        return head

    def save(self, path: str | Path) -> None:
        """Write recipe and head to one file: the same data give the same bytes."""
        save(path, {"recipe": asdict(self.recipe), "head": self.exact.state_dict()})

    def update(self, x: Any, y: Sequence[Any]) -> None:
        """Add samples x with answers y."""
        self.exact.update(torch.as_tensor(x), self.recipe.targets(y))

    def forget(self, x: Any, y: Sequence[Any]) -> None:
        """Remove samples, as if they had never been added; see `ExactHead.forget`."""
        self.exact.forget(torch.as_tensor(x), self.recipe.targets(y))

    def predict(self, x: Any) -> Tensor:
        """The probability of every class `[B, C]`, or the value of every sample `[B]`."""
        return (
            self.predictive(x).mean
            if self.recipe.spread
            else self.exact.predict(torch.as_tensor(x))
        )

    def predictive(self, x: Any) -> Predictive:
        """Mean and variance of the value of every sample `[B]`."""
        mean, variance = self.exact.predictive(torch.as_tensor(x))
        spread = self.recipe.spread
        return Predictive(mean[:, 0] * spread + self.recipe.center, variance[:, 0] * spread**2)

    def left_out(self) -> tuple[int, int]:
        """How many kept samples the head without them predicts rightly, of how many."""
        right = self.exact.solution().left_out
        return (0, 0) if right is None else (int(right.sum()), len(right))

    def noise(self) -> float:
        """The standard deviation of values around the best prediction."""
        variances = [posterior.noise_variance for posterior in self.exact.heads]
        return self.recipe.spread * max(variances, default=0.0) ** 0.5

    def __add__(self, other: Head) -> Self:
        """A head with the data of both. Neither changes."""
        self._check_same(other.recipe)
        return type(self)(self.recipe, self.exact + other.exact)

    def __sub__(self, other: Head) -> Self:
        """A head with the data of this one that are not in the other. Neither changes."""
        self._check_same(other.recipe)
        return type(self)(self.recipe, self.exact - other.exact)

    def without_ledger(self) -> Self:
        """A head that does not know which samples are in, to be published. This one does not
        change."""
        exact = self.exact.holding(self.exact.sums)
        exact.drop_ledger()
        return type(self)(replace(self.recipe, ledger=False), exact)

    def _check_same(self, other: Recipe) -> None:
        for name, value in asdict(self.recipe).items():
            theirs = getattr(other, name)
            if value != theirs:
                raise UserError(
                    f"the heads have different {name} ({str(value)[:40]} and {str(theirs)[:40]}): "
                    "fit one with --like the other"
                )
