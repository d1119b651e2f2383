"""Everything about a head that is fixed before the first sample: maps, classes, sizes, scales."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..errors import DataError, UserError, did_you_mean
from ..exact import ExactHead
from ..features import DeadLeaves, RandomConvolution, RandomReLU, efficientnet_lite
from .files import Files, class_of, numbers, read_images, read_table
from .survey import TARGET_LIMIT

TOGETHER = 64  # images in a portion
MAPS = {
    "relu": "random ReLU features",
    "linear": "the columns themselves, such as embeddings",
    "leaves": "dead leaves filters over patches of images",
    "convolution": "random filters over patches of images",
    "lite0": "EfficientNet-lite0, trained on ImageNet",
    "lite1": "EfficientNet-lite1",
    "lite2": "EfficientNet-lite2",
}


Numbers = float | Sequence[float]


class Portion(NamedTuple):
    """Some samples of a file: names, paths of images or numbers `[B, D]`, and answers (None if
    unknown)."""

    names: list[str]
    inputs: Any
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
    """How files become samples of an exact head.

    Classes are names, in the order of the head's labels. `size` is that of images, `columns` those
    of tables, `mean` and `scale` of their numbers. Values have a `center` and a `spread`, which is
    0 for classes. One sample in `calibration` is kept; see `ExactHead`, also for the `ledger`.
    """

    features: str
    count: int
    maps: int
    seed: int
    classes: list[str]
    size: int = 0
    label: str = ""
    columns: list[str] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    center: float = 0.0
    spread: float = 0.0
    calibration: int = 16
    ledger: bool = False

    def __post_init__(self) -> None:
        if self.features not in MAPS:
            guess = did_you_mean(self.features, MAPS)
            names = ", ".join(MAPS)
            raise UserError(f"features must be one of {names}, got {self.features!r}{guess}")

    def make_head(self) -> ExactHead:
        """The exact head without data."""
        options: dict[str, Any] = {"calibration": self.calibration, "ledger": self.ledger}
        if self.spread:
            options["targets"] = "values"
        else:
            options["classes"] = len(self.classes)
        if self.features.startswith("lite"):
            make: Any = efficientnet_lite(int(self.features[4:]), project=self.count or None)
            if not self.count:
                return ExactHead(make, **options)
        else:
            make = partial(_scaled_map, self)
        return ExactHead(Ensemble(make, self.maps, seed=self.seed), **options)

    def portions(self, files: Files) -> Iterator[Portion]:
        """The samples of all files; answers may be None."""
        if self.size:
            for start in range(0, len(files.paths), TOGETHER):
                some = files.paths[start : start + TOGETHER]
                yield Portion(
                    [*map(str, some)], some, [class_of(path, files.root) for path in some]
                )
            return
        for path in files.paths:
            for frame in read_table(path, "" if self.spread else self.label):
                x = np.concatenate(numbers(frame, self.columns, path), axis=1)
                if x.shape[1] != len(self.mean):
                    raise DataError(
                        f"{path} has {x.shape[1]} numbers a row, and the head {len(self.mean)}"
                    )
                names = [f"{path}:{row + 2}" for row in frame.index]
                yield Portion(names, x, self._answers(frame, path))

    def _answers(self, frame: Any, path: Any) -> list[Any]:
        if self.label not in frame:
            return [None] * len(frame)
        known = frame[self.label].notna()
        if self.spread:
            answers = numbers(frame.fillna({self.label: 0.0}), [self.label], path)[0][:, 0]
        else:
            answers = frame[self.label]
        return [answer if there else None for answer, there in zip(answers, known, strict=True)]

    def inputs(self, portion: Portion) -> Tensor:
        """A portion's samples as the head takes them `[B, ...]`."""
        if self.size:
            return read_images(portion.inputs, self.size)
        return torch.from_numpy(portion.inputs)

    def read(self, portion: Portion) -> tuple[Tensor, Tensor]:
        """A portion's inputs and targets, all of which must be known."""
        return self.inputs(portion), self.targets(portion.answers, portion.names)

    def targets(self, answers: Sequence[Any], names: Sequence[str] = ()) -> Tensor:
        """Names of classes as labels, or values in units of the spread `[B]`."""
        if not self.spread:
            codes = {name: code for code, name in enumerate(self.classes)}
            for number, answer in enumerate(answers):
                if answer not in codes:
                    known = ", ".join(self.classes[:5])
                    which = names[number] if names else f"sample {number}"
                    raise DataError(
                        f"{which} has the label {answer!r}, which is none of {known} ...: fit a "
                        "head with all classes, and others --like it"
                    )
            return torch.tensor([codes[answer] for answer in answers])
        for number, answer in enumerate(answers):
            which = names[number] if names else f"sample {number}"
            if answer is None:
                raise DataError(f"{which} has no value in column {self.label!r}")
            if abs(answer - self.center) > TARGET_LIMIT * self.spread:
                raise DataError(
                    f"{which} has the value {answer:g}, which lies too far from those of the "
                    f"head's first data ({self.center:g} +- {self.spread:g}): fit a new head"
                )
        return (torch.tensor(answers, dtype=torch.float64) - self.center) / self.spread


def _scaled_map(recipe: Recipe) -> nn.Module:
    """A feature map of columns, or of images as bytes."""
    size = recipe.size
    if size and recipe.features == "leaves":
        return Scaled(DeadLeaves(3, size, recipe.count // 8), 127.5, 127.5)
    if size and recipe.features == "convolution":
        return Scaled(RandomConvolution(3, size, recipe.count // 4), 127.5, 127.5)
    if size:
        return Scaled(RandomReLU(3 * size**2, recipe.count, bias_scale=0.0), 127.5, 127.5)
    if recipe.features == "linear":
        return Scaled(nn.Identity(), recipe.mean, recipe.scale)
    inner = RandomReLU(len(recipe.mean), recipe.count)
    return Scaled(inner, recipe.mean, recipe.scale)
