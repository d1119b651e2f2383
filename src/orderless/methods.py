"""One registry of methods: a name, and how to build the learner it stands for.

>>> @method("mine", "a network that ...")                      # doctest: +SKIP
... def mine(setup: Setup) -> Learner:
...     particles, optimizer = setup.network()
...     return Learner(setup.scenario, GradientDescent(particles, optimizer))
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import nn

from .consolidation import EWC, SI, LwF
from .filters import (
    AveragingParticles,
    BootstrapParticleFilter,
    GaussianSumFilter,
    GradientDescent,
    RaoBlackwellizedFilter,
    WeightedParticleFilter,
)
from .filters.gradient import GradientFilter
from .learners import ExactLearner, GaussianSumLearner, Learner, Reservoir
from .learners.exact import feature_map
from .learners.filtered import Consolidation
from .particles import Ensemble, Perturb
from .scenarios import Scenario
from .settings import Settings


@lru_cache(maxsize=4)
def _initial(
    make_model: Callable[[], nn.Module],
    n: int,
    init: str | Perturb,
    seed: int,
    device: str,
    group: Any,
) -> Ensemble:
    """Kept for the next cell: every method and order starts from the same networks."""
    return Ensemble(make_model, n, init, seed, device=device, group=group)


@dataclass(frozen=True)
class Setup:
    """Everything a method is built from; `group`: the processes that share particles out."""

    scenario: Scenario
    settings: Settings
    make_model: Callable[[], nn.Module]
    seed: int
    group: Any = None

    def initial(
        self, make_model: Callable[[], nn.Module], n: int, init: str | Perturb = "fresh"
    ) -> Ensemble:
        """n particles on the scenario's device; too few for the ranks, and each rank has them all.

        A single network, say, is then computed by everyone alike.
        """
        enough = self.group is not None and n >= torch.distributed.get_world_size(self.group)
        group = self.group if enough else None
        place = str(self.scenario.device)
        return copy.deepcopy(_initial(make_model, n, init, self.seed, place, group))

    def ensemble(self, n: int) -> Ensemble:
        """n particles as the settings want them."""
        s = self.settings
        init = Perturb(s.perturb_low, s.perturb_high) if s.init == "perturb" else "fresh"
        particles = self.initial(self.make_model, n, init)
        particles.chunk_size, particles.precision = s.chunk_size, s.precision
        return particles

    def optimizer(self, particles: Ensemble, kind: str | None = None) -> torch.optim.Optimizer:
        s = self.settings
        if (kind or s.optimizer) == "adam":
            return torch.optim.Adam(particles.parameters(), lr=s.adam_lr)
        return torch.optim.SGD(particles.parameters(), lr=s.lr)

    def descent(self, kind: str | None = None) -> GradientDescent:
        """One network and its optimizer."""
        particles = self.ensemble(1)
        return GradientDescent(particles, self.optimizer(particles, kind))

    def weighted(self) -> WeightedParticleFilter:
        """The paper's filter."""
        s, particles = self.settings, self.ensemble(self.settings.particles)
        return WeightedParticleFilter(
            particles,
            self.optimizer(particles),
            weighting=s.weighting,
            loss_scale=s.loss_scale,
            min_ess=s.min_ess,
        )


@dataclass(frozen=True)
class Method:
    """A named way to learn.

    `particles` tells whether it keeps many networks or one, `in_all` whether "all methods" means
    this one, too; the others are run when they are named. `kind` is that of the benchmarks it is
    made for: "supervised", "cloning" or "lifelong".
    """

    name: str
    description: str
    build: Callable[[Any], Any]
    particles: bool
    in_all: bool = True
    kind: str = "supervised"


METHODS: dict[str, Method] = {}
Build = TypeVar("Build", bound=Callable[[Any], Any])


def method(
    name: str,
    description: str,
    particles: bool = False,
    in_all: bool = True,
    kind: str = "supervised",
) -> Callable[[Build], Build]:
    """Register a function `Setup -> learner` under a name."""

    def register(build: Build) -> Build:
        METHODS[name] = Method(name, description, build, particles, in_all, kind)
        return build

    return register


def find_method(name: str, kind: str | None = None) -> Method:
    """A method by its name; with `kind`, one for benchmarks of that kind."""
    known = [each.name for each in METHODS.values() if kind in (None, each.kind)]
    if name not in known:
        unknown = "unknown method" if name not in METHODS else "not a method for this benchmark:"
        raise ValueError(f"{unknown} {name!r}: choose from {', '.join(known)}")
    return METHODS[name]


# ---------------------------------------------------------------------- particle methods


@method("wpf", "weighted particle filter", particles=True)
def _wpf(setup: Setup) -> Learner:
    return Learner(setup.scenario, setup.weighted())


@method("averaging", "the same particles, unweighted", particles=True)
def _averaging(setup: Setup) -> Learner:
    particles = setup.ensemble(setup.settings.particles)
    return Learner(setup.scenario, AveragingParticles(particles, setup.optimizer(particles)))


@method("bootstrap", "resample and perturb, no gradients", particles=True)
def _bootstrap(setup: Setup) -> Learner:
    s, particles = setup.settings, setup.ensemble(setup.settings.particles)
    return Learner(setup.scenario, BootstrapParticleFilter(particles, perturbation=s.perturbation))


@method("gsf", "Gaussian-sum filter, a precision per particle", particles=True, in_all=False)
def _gsf(setup: Setup) -> GaussianSumLearner:
    s, particles = setup.settings, setup.ensemble(setup.settings.particles)
    filter = GaussianSumFilter(
        particles, sigma2=s.gsf_sigma2, curvature=s.gsf_curvature, min_ess=s.min_ess
    )
    return GaussianSumLearner(setup.scenario, filter)


@method("rb", "exact Gaussian heads on random features; no order at all", particles=True)
def _rb(setup: Setup) -> ExactLearner:
    s, scenario = setup.settings, setup.scenario
    make_map = feature_map(scenario.input_shape, s.rb_features)
    maps = setup.initial(make_map, s.rb_particles)
    maps.chunk_size = s.chunk_size
    classes = scenario.outputs if scenario.kind == "class" else scenario.classes_per_task
    filter = RaoBlackwellizedFilter(maps, weights=s.rb_weights, classes=classes)
    return ExactLearner(scenario, filter, s.rb_block)


# ---------------------------------------------------------------------- single networks


@method("gd", "gradient descent, one network")
def _gd(setup: Setup) -> Learner:
    return Learner(setup.scenario, setup.descent())


@method("adam", "Adam, one network (a control)")
def _adam(setup: Setup) -> Learner:
    return Learner(setup.scenario, setup.descent("adam"))


@method("er", "experience replay, one network (a control)")
def _er(setup: Setup) -> Learner:
    replay = Reservoir(setup.settings.replay_buffer, setup.seed)
    return Learner(setup.scenario, setup.descent(), replay=replay)


@method("joint", "all tasks at once, one network (an upper bound)")
def _joint(setup: Setup) -> Learner:
    return Learner(setup.scenario, setup.descent(), joint=True)


# ---------------------------------------------------------------------- consolidation


def _ewc(setup: Setup, particles: Ensemble, strength: float) -> EWC:
    s = setup.settings
    return EWC(
        particles, strength, fisher=s.fisher, mode=s.ewc_mode, fisher_samples=s.fisher_samples
    )


def _si(setup: Setup, particles: Ensemble, strength: float) -> SI:
    return SI(particles, strength, xi=setup.settings.si_xi)


def _lwf(setup: Setup, particles: Ensemble, strength: float) -> LwF:
    return LwF(particles, strength, temperature=setup.settings.lwf_temperature)


def _register_consolidation(
    name: str, title: str, build: Callable[[Setup, Ensemble, float], Consolidation]
) -> None:
    """Four rows each: alone and over particles, at the literature's strength and at a tuned one."""

    def with_filter(filter: GradientFilter, setup: Setup, tuned: bool) -> Learner:
        settings = setup.settings
        strength = (
            settings.tuned_strength(name) if tuned else settings.strength(name, setup.scenario.kind)
        )
        consolidation = build(setup, filter.particles, strength)
        return Learner(setup.scenario, filter, consolidation=consolidation)

    for suffix, tuned in (("", False), ("-tuned", True)):
        how = "strength swept on validation data" if tuned else "the literature's strength"

        @method(f"{name}{suffix}", f"{title}, {how}, one network")
        def alone(setup: Setup, tuned: bool = tuned) -> Learner:
            return with_filter(setup.descent(), setup, tuned)

        @method(f"{name}{suffix}+wpf", f"{title}, {how}, over weighted particles", particles=True)
        def over_particles(setup: Setup, tuned: bool = tuned) -> Learner:
            return with_filter(setup.weighted(), setup, tuned)


_register_consolidation("ewc", "elastic weight consolidation", _ewc)
_register_consolidation("lwf", "learning without forgetting", _lwf)
_register_consolidation("si", "synaptic intelligence", _si)

from . import policy_methods  # noqa: E402, F401  (registers the methods of the ProcGen benchmarks)
