"""One network under gradient descent, and the particle filters of the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .registry import DESCENT, ENSEMBLE, NETWORK, PARTICLES, WEIGHTED, Style, method
from .settings import Number, Settings

if TYPE_CHECKING:
    from .learners import Learner
    from .setup import Setup

ORANGE = "#D55E00"
AVERAGING = Style("#E69F00", "o")
BOOTSTRAP = Style("#999999", "X")


class BootstrapSettings(Settings):
    """Settings of the bootstrap particle filter."""

    perturbation: Number = 0.01
    """Standard deviation of the bootstrap filter's perturbations."""


@method(
    "wpf",
    "weighted particle filter",
    label="Weighted particle filter",
    style=Style(ORANGE, "*"),
    reads=WEIGHTED,
    weighted=True,
)
def wpf(setup: Setup) -> Learner:
    return setup.learner(setup.weighted())


@method(
    "averaging",
    "the same particles, unweighted",
    label="Averaging particles",
    style=AVERAGING,
    reads=ENSEMBLE,
)
def averaging(setup: Setup) -> Learner:
    return setup.learner(setup.averaging())


@method(
    "bootstrap",
    "resample and perturb, no gradients",
    label="Baseline particle filter",
    style=BOOTSTRAP,
    settings=BootstrapSettings,
    reads=NETWORK + PARTICLES,
)
def bootstrap(setup: Setup) -> Learner:
    return setup.learner(setup.bootstrap(setup.own(BootstrapSettings).perturbation))


@method(
    "gd",
    "gradient descent, one network",
    label="Gradient descent",
    style=Style("#000000", "s"),
    reads=DESCENT,
)
def gd(setup: Setup) -> Learner:
    return setup.learner(setup.descent())


@method(
    "adam",
    "Adam, one network (a control)",
    label="Adam",
    style=Style("#000000", "D"),
    reads=("adam_lr", "schedule", *NETWORK),
)
def adam(setup: Setup) -> Learner:
    return setup.learner(setup.descent("adam"))
