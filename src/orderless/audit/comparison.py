"""This library's own learners on the same tasks, built from the shape of the data alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..features import RandomConvolution, RandomReLU
from ..filters import (
    AveragingParticles,
    PosteriorProduct,
    RaoBlackwellizedFilter,
    WeightedParticleFilter,
)
from ..methods.learners.product import head_of, squared_errors
from ..networks import mlp
from ..particles import Ensemble, per_particle
from ..scenarios import Scenario, Task
from .learners import MakeLearner, batches_of

COMPARISONS = ("wpf", "averaging", "product", "rb")
_INPUT_LIMIT = 4.0  # of the random features: what is larger is clipped


@dataclass(frozen=True)
class ComparisonSettings:
    """How the learners beside the audited one are built."""

    particles: int = 20
    """N of wpf and averaging."""
    hidden: int = 100
    """Width of the two hidden layers of their networks, and of product's."""
    lr: float = 0.01
    """Their learning rate, sigma^2."""
    batch_size: int = 32
    """Samples per step, of product too."""
    epochs: int = 1
    """Passes over each task, likewise."""
    product_lr: float = 0.1
    """Learning rate of product."""
    maps: int = 4
    """N of rb."""
    features: int = 512
    """Random features of each of its maps."""


class _Scaling:
    """Inputs as networks like them: flat data and images alike about within +-4.

    Bytes are divided by 255. Data within +-4 stays as it is. Other data is standardised by the mean
    and standard deviation of each input over the training data of *all* tasks: numbers that are
    fixed before the first order begins, hence the same in all of them.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.mean: Tensor | float = 0.0
        self.scale: Tensor | float = 1.0
        if all(task.x.dtype == torch.uint8 for task in tasks):
            self.scale = 255.0
            return
        if max(float(task.x.abs().max()) for task in tasks) <= _INPUT_LIMIT:
            return
        everything = torch.cat([task.x for task in tasks]).double()
        deviation = everything.std(0, correction=0)
        self.mean = everything.mean(0).float()
        self.scale = torch.where(deviation > 0, deviation, 1.0).float()

    def __call__(self, x: Tensor) -> Tensor:
        return ((x.float() - self.mean) / self.scale).clamp(-_INPUT_LIMIT, _INPUT_LIMIT)


class GradientComparison:
    """wpf or averaging: a small MLP per particle, SGD."""

    def __init__(
        self,
        make_filter: Callable[..., Any],
        make_model: Callable[[], nn.Module],
        scaling: _Scaling,
        settings: ComparisonSettings,
        device: torch.device,
        seed: int,
    ) -> None:
        self.scaling, self.settings, self.seed = scaling, settings, seed
        particles = Ensemble(make_model, settings.particles, seed=seed, device=device)
        optimizer = torch.optim.SGD(particles.parameters(), lr=settings.lr)
        self.filter = make_filter(particles, optimizer)
        losses = per_particle(F.cross_entropy)
        self._step = self.filter.compile(lambda x, y: losses(particles(x), y))

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        s = self.settings
        options: Any = {"seed": self.seed, "batch_size": s.batch_size, "epochs": s.epochs}
        for inputs, labels in batches_of(self.scaling(x), y.long(), task, **options):
            self._step(inputs, labels)

    def predict(self, x: Tensor) -> Tensor:
        parts = self.scaling(x).split(1024)
        return torch.cat([self.filter.predict(part) for part in parts])


class ProductComparison:
    """product: one small MLP that starts every task anew, squared error, SGD."""

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        scaling: _Scaling,
        settings: ComparisonSettings,
        device: torch.device,
        seed: int,
    ) -> None:
        self.scaling, self.settings, self.seed = scaling, settings, seed
        particles = Ensemble(make_model, 1, seed=seed, device=device)
        with torch.no_grad():
            for parameter in head_of(particles):
                parameter.zero_()
        self.filter = PosteriorProduct(
            particles, lambda parameters: torch.optim.SGD(parameters, lr=settings.product_lr)
        )
        self._step = self.filter.compile(lambda x, y: squared_errors(particles(x), y).mean(1))

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        s, x, y = self.settings, self.scaling(x), y.long()
        options: Any = {"seed": self.seed, "batch_size": s.batch_size, "epochs": s.epochs}
        for batch in batches_of(x, y, task, **options):
            self._step(*batch)
        self.filter.end_task((x, y))

    def predict(self, x: Tensor) -> Tensor:
        parts = self.scaling(x).split(1024)
        return torch.cat([self.filter.predict(part) for part in parts])


class ExactComparison:
    """rb: random features, a head per task, all tasks competing for each label."""

    def __init__(
        self,
        make_map: Callable[[], nn.Module],
        scaling: _Scaling,
        settings: ComparisonSettings,
        device: torch.device,
        classes: int,
        seed: int,
    ) -> None:
        self.scaling = scaling
        features = Ensemble(make_map, settings.maps, seed=seed, device=device)
        self.filter = RaoBlackwellizedFilter(features, weights="uniform", classes=classes)

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        self.filter.update(self.scaling(x), y.long(), task=task)

    def predict(self, x: Tensor) -> Tensor:
        return self.filter.predict(self.scaling(x))


def comparisons(
    names: Sequence[str], tasks: Sequence[Task], settings: ComparisonSettings | None = None
) -> dict[str, MakeLearner]:
    """`make_learner` for each of `names`, of those in `COMPARISONS`, fit for these tasks."""
    for name in names:
        if name not in COMPARISONS:
            raise ValueError(f"compare knows {', '.join(COMPARISONS)}, got {name!r}")
    if not names:
        return {}
    s = settings or ComparisonSettings()
    scenario, scaling = Scenario(tasks), _Scaling(tasks)
    shape, classes, device = scenario.input_shape, scenario.outputs, tasks[0].x.device
    network = partial(mlp, math.prod(shape), s.hidden, classes)
    gradient: dict[str, Any] = {"wpf": WeightedParticleFilter, "averaging": AveragingParticles}
    made: dict[str, MakeLearner] = {}
    for name in names:
        if name == "rb":
            make_map = _feature_map(shape, s.features)
            made[name] = partial(ExactComparison, make_map, scaling, s, device, classes)
        elif name == "product":
            made[name] = partial(ProductComparison, network, scaling, s, device)
        else:
            made[name] = partial(GradientComparison, gradient[name], network, scaling, s, device)
    return made


def _feature_map(shape: tuple[int, ...], features: int) -> Callable[[], nn.Module]:
    """Convolutional for colour images of 8 to 36 pixels, else ReLU."""
    if len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] and 8 <= shape[1] <= 36:
        return partial(RandomConvolution, 3, shape[1], max(1, features // 4), regions=2)
    return partial(RandomReLU, math.prod(shape), features)
