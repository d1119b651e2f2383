"""What the suites of classification have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from orderless.tasks import Task

from ..methods.registry import SUPERVISED
from ..methods.settings import RunSettings, Size
from ..runs.supervised import SupervisedRunner
from .base import Outline, Preset, Suite
from .scenario import Scenario
from .streams import keyed_generator

Assign = Literal["fixed", "random"]

SCENARIOS = ("domain", "task", "class")


class SupervisedSettings(RunSettings):
    """Settings of the suites of classification."""

    family: ClassVar[list[str]] = SUPERVISED

    assign: Assign = "fixed"
    """Classes to tasks: "fixed", or "random" by the seed."""
    hidden: Size = 400
    """Width of the hidden layers of a network."""
    validation: float = Field(default=0.0, ge=0, lt=1)
    """Hold out this share of the training data and score on it instead of the test data."""
    test_batch: Size = 1000
    """Samples per step when scoring."""
    score_after: Literal["each", "last"] = "each"
    """Score all tasks after "each" task, or only after the "last": twenty tasks then take about
    half as long, but forgetting along the way and particle positions are not recorded."""

    def seed_of_tasks(self, seed: int) -> int:
        return seed if self.assign == "random" else 0


@dataclass
class SupervisedSuite(Suite):
    """A suite of classification. A new one says what its tasks are: `outline` and `load`."""

    settings: ClassVar[type[SupervisedSettings]] = SupervisedSettings
    runner = SupervisedRunner
    scores: ClassVar[tuple[str, ...]] = ("particles", "logits", "probs")
    variants: tuple[str, ...] = SCENARIOS

    def presets(self, variant: str) -> Mapping[str, Preset]:
        return {"table1": Preset(self.settings()), "demo": self.demo(), "own": self.own()}

    def small(self, **changes: Any) -> RunSettings:
        """Settings for little data; the literature's strengths are for Adam and longer runs."""
        usual: dict[str, Any] = {"hidden": 100, "batch_size": 32, "ewc_strength": 10.0}
        usual |= {"si_strength": 100.0, "exact_particles": 2}
        return self.settings(**{**usual, **changes})

    def demo(self, **changes: Any) -> Preset:
        """A few large steps: all methods in three orders take a minute on two cores."""
        usual: dict[str, Any] = {"particles": 8, "lr": 0.012, "product_lr": 0.2}
        usual |= {"perturbation": 0.02, "exact_features": 512}
        return Preset(self.small(**{**usual, **changes}), 3)

    def own(self, **changes: Any) -> Preset:
        """For a user's own data: one pass, as the exact head counts every pass, in many steps."""
        usual: dict[str, Any] = {"particles": 20, "lr": 0.1, "batch_size": 8}
        usual |= {"exact_features": 1024}
        return Preset(self.small(**{**usual, **changes}), 5)

    def network(self, shapes: Any, settings: Any) -> Callable[[], nn.Module]:
        return maker(mlp, math.prod(shapes.input_shape), settings.hidden, shapes.outputs)


def outline(variant: str, tasks: int, classes: int, input_shape: tuple[int, ...]) -> Outline:
    """Tasks of equally many classes each."""
    return Outline(tasks, input_shape, classes if variant == "domain" else classes * tasks)


@lru_cache
def maker(
    network: Callable[..., nn.Module], *sizes: int, **options: bool
) -> Callable[[], nn.Module]:
    """The same function for the same arguments, so that initial networks can be cached by it."""
    return partial(network, *sizes, **options)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """A network with two hidden layers of the same width."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def assigned(fixed: list[list[int]], assign: str, seed: int) -> list[list[int]]:
    """The classes of each task, sorted by their labels within the task."""
    one_of("assign", assign, ("fixed", "random"))
    if assign == "fixed":
        return fixed
    classes = torch.tensor(sorted(c for group in fixed for c in group))
    shuffled = classes[torch.randperm(len(classes), generator=keyed_generator("assign", seed))]
    return shuffled.view(len(fixed), -1).tolist()


def split_into_tasks(
    data: tuple[Tensor, Tensor, Tensor, Tensor],
    groups: Sequence[Sequence[int]],
    names: Sequence[str],
    validation: float,
    device: torch.device | str,
) -> list[Task]:
    """A task for each group of the classes in (x, y, x_test, y_test)."""
    x, y, x_test, y_test = data
    tasks = []
    for group, name in zip(groups, names, strict=True):
        label = torch.full((1 + int(y.max()),), -1)
        label[list(group)] = torch.arange(len(group))
        train = label[y] >= 0
        test = label[y_test] >= 0
        tasks.append(Task(x[train], label[y[train]], x_test[test], label[y_test[test]], name=name))
    if validation:
        tasks = Scenario(tasks).validation(validation).tasks
    return [task.to(device) for task in tasks]
