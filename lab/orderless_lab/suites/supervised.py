"""What the suites of classification have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ..methods.registry import SUPERVISED
from ..methods.settings import RunSettings, Size
from .base import Outline, Preset, Suite

if TYPE_CHECKING:
    from torch import nn

    from ..runs.supervised import SupervisedRunner

SCENARIOS = ("domain", "task", "class")


class SupervisedSettings(RunSettings):
    """Settings of the suites of classification."""

    family: ClassVar[list[str]] = SUPERVISED

    assign: Literal["fixed", "random"] = "fixed"
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
        from .networks import mlp

        return maker(mlp, math.prod(shapes.input_shape), settings.hidden, shapes.outputs)

    @property
    def runner(self) -> type[SupervisedRunner]:
        from ..runs.supervised import SupervisedRunner

        return SupervisedRunner


def outline(variant: str, tasks: int, classes: int, input_shape: tuple[int, ...]) -> Outline:
    """Tasks of equally many classes each."""
    return Outline(tasks, input_shape, classes if variant == "domain" else classes * tasks)


@lru_cache
def maker(
    network: Callable[..., nn.Module], *sizes: int, **options: bool
) -> Callable[[], nn.Module]:
    """The same function for the same arguments, so that initial networks can be cached by it."""
    return partial(network, *sizes, **options)
