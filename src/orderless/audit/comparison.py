"""This library's learners to compare with, built from the shape of the data alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orderless_lab.methods.learners.product import squared_errors, zero_head
from orderless_lab.networks import mlp

from ..ensemble import Ensemble, per_particle
from ..features import RandomConvolution, RandomReLU
from ..filters import (
    AveragingParticles,
    RaoBlackwellizedFilter,
    WeightedParticleFilter,
)
from ..product import PosteriorProduct
from ..tasks import Task
from .learners import BatchLearner, MakeLearner

COMPARISONS = ("wpf", "averaging", "product", "rb")
_INPUT_LIMIT = 4.0  # larger inputs of the random features are clipped


@dataclass(frozen=True)
class ComparisonSettings:
    """Settings of the learners to compare with."""

    particles: int = 20
    """N of wpf and averaging."""
    hidden: int = 100
    """Width of the two hidden layers of wpf, averaging and product."""
    lr: float = 0.01
    """Learning rate sigma^2 of wpf and averaging."""
    batch_size: int = 32
    """Samples per step of wpf, averaging and product."""
    epochs: int = 1
    """Passes over each task of wpf, averaging and product."""
    product_lr: float = 0.1
    """Learning rate of product."""
    maps: int = 4
    """N of rb."""
    features: int = 512
    """Random features per map of rb."""


class _Scaling:
    """Scales inputs to about +-4.

    Bytes are divided by 255. Data within +-4 is not scaled. Other data is standardised by the mean
    and standard deviation of each input over the training data of *all* tasks, which are the same
    for every order.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.mean: Tensor | float = 0.0
        self.scale: Tensor | float = 1.0
        if all(task.x.dtype == torch.uint8 for task in tasks):
            self.scale = 255.0
        elif max(float(task.x.double().abs().max()) for task in tasks) > _INPUT_LIMIT:
            everything = torch.cat([task.x for task in tasks]).double()
            deviation = everything.std(0, correction=0)
            self.mean = everything.mean(0).float()
            self.scale = torch.where(deviation > 0, deviation, 1.0).float()

    def __call__(self, x: Tensor) -> Tensor:
        return ((x.float() - self.mean) / self.scale).clamp(-_INPUT_LIMIT, _INPUT_LIMIT)


class _Targets:
    """Passes labels on; standardises values by the training data of all tasks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.values = tasks[0].values
        everything = torch.cat([task.y for task in tasks]).double()
        self.mean, self.scale = float(everything.mean()), float(everything.std()) or 1.0
        self.outputs = 1 if self.values else 1 + max(int(task.y.max()) for task in tasks)
        self.loss = _squared_error if self.values else F.cross_entropy
        self.link = "identity" if self.values else "softmax"

    def __call__(self, y: Tensor) -> Tensor:
        return ((y - self.mean) / self.scale).float() if self.values else y.long()

    def back(self, answers: Tensor) -> Tensor:
        return answers[:, 0] * self.scale + self.mean if self.values else answers


def _squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(outputs.squeeze(-1), y) / 2


@dataclass(eq=False)
class Comparison(BatchLearner):
    """A filter as a learner of tasks: batch by batch if it has a `step`, else at once."""

    filter: Any
    step: Any
    scaling: _Scaling
    targets: _Targets

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        x, y = self.scaling(x), self.targets(y)
        if self.step is None:  # classes: a head per task, which compete; values: one head
            self.filter.update(x, y, task=None if self.targets.values else task)
            return
        for batch in self.batches(x, y, task):
            self.step(*batch)
        if isinstance(self.filter, PosteriorProduct):
            self.filter.end_task((x, y))

    def predict(self, x: Tensor) -> Tensor:
        parts = self.scaling(x).split(1024)
        return self.targets.back(torch.cat([self.filter.predict(part) for part in parts]))


def comparisons(
    names: Sequence[str], tasks: Sequence[Task], settings: ComparisonSettings | None = None
) -> dict[str, MakeLearner]:
    """`make_learner` of each of `names`, a subset of `COMPARISONS`, for these tasks."""
    for name in names:
        if name not in COMPARISONS:
            raise ValueError(f"compare must name {', '.join(COMPARISONS)}, got {name!r}")
    if not names:
        return {}
    if "product" in names and tasks[0].values:
        raise ValueError("product learns classes, but these tasks have values: compare wpf or rb")
    x, s = tasks[0].x, settings or ComparisonSettings()
    scaling, targets = _Scaling(tasks), _Targets(tasks)

    def make(name: str, seed: int) -> Comparison:
        ensemble = partial(Ensemble, seed=seed, device=x.device)
        filter, step = _make_filter(name, tuple(x.shape[1:]), targets, s, ensemble)
        return Comparison(seed, s.batch_size, s.epochs, filter, step, scaling, targets)

    return {name: partial(make, name) for name in names}


def _make_filter(
    name: str, shape: tuple[int, ...], targets: _Targets, s: ComparisonSettings, ensemble: Any
) -> tuple[Any, Any]:
    """A filter of an ensemble, and its function that learns a batch."""
    if name == "rb":
        maps = ensemble(_feature_map(shape, s.features), s.maps)
        kind: Any = {"targets": "values"} if targets.values else {"classes": targets.outputs}
        return RaoBlackwellizedFilter(maps, weights="uniform", **kind), None
    make_model = partial(mlp, math.prod(shape), s.hidden, targets.outputs)
    particles = ensemble(make_model, 1 if name == "product" else s.particles)
    if name == "product":  # squared error, and a head that starts at zero
        zero_head(particles)
        product = PosteriorProduct(particles, partial(torch.optim.SGD, lr=s.product_lr))
        return product, product.compile(lambda x, y: squared_errors(particles(x), y).mean(1))
    make: Any = WeightedParticleFilter if name == "wpf" else AveragingParticles
    optimizer = torch.optim.SGD(particles.parameters(), lr=s.lr)
    filter, losses = make(particles, optimizer, link=targets.link), per_particle(targets.loss)
    return filter, filter.compile(lambda x, y: losses(particles(x), y))


def _feature_map(shape: tuple[int, ...], features: int) -> Callable[[], nn.Module]:
    """A convolutional map for square colour images of 8 to 36 pixels, else a ReLU map."""
    if len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] and 8 <= shape[1] <= 36:
        return partial(RandomConvolution, 3, shape[1], max(1, features // 4), regions=2)
    return partial(RandomReLU, math.prod(shape), features)
