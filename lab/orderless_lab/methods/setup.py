"""`Setup`: builds a method's networks, optimizers and filters from the settings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self, TypeVar

import torch
from torch import nn

from orderless.ensemble import Ensemble, Perturb
from orderless.filters import (
    AveragingParticles,
    BootstrapParticleFilter,
    GradientDescent,
    GradientFilter,
    ParticleFilter,
    WeightedParticleFilter,
    Weighting,
)

from ..optim import TRAC
from ..rl import BehaviourCloning, LineageBootstrapFilter, policy_logits
from ..rl.tasks import ProcgenTasks
from ..suites.scenario import Scenario
from .learners import Learner
from .learners.policy import PolicyLearner
from .policy import PolicyEWCSettings
from .settings import Own, RunSettings

Descending = TypeVar("Descending", bound=GradientFilter)

# cached for the next cell: all methods and orders start from the same networks
_initial = lru_cache(maxsize=4)(Ensemble)


@dataclass(frozen=True)
class Setup:
    """What a method is built from."""

    scenario: Scenario
    settings: RunSettings
    make_model: Callable[[], nn.Module]
    seed: int

    def learner(self, filter: ParticleFilter, **options: Any) -> Learner:
        """A `Learner` that trains a filter in the scenario; `options` are those of `Learner`."""
        return Learner(self.scenario, filter, **options)

    def own(self, model: type[Own]) -> Own:
        """A method's own settings."""
        return self.settings.own(model)

    def initial(
        self, make_model: Callable[[], nn.Module], n: int, init: str | Perturb = "fresh"
    ) -> Ensemble:
        """n particles on the scenario's device."""
        device = str(self.scenario.device)
        return copy.deepcopy(_initial(make_model, n, init, self.seed, device=device))

    def ensemble(self, n: int) -> Ensemble:
        """n particles, initialised as the settings define."""
        s = self.settings
        init: str | Perturb = "fresh"
        if s.init != "fresh":
            base = "one" if s.init == "perturb" else "fresh"
            init = Perturb(s.perturb_low, s.perturb_high, base)
        particles = self.initial(self.make_model, n, init)
        particles.chunk_size = s.chunk_size
        particles.precision = s.precision
        return particles

    def optimizer(self, particles: Ensemble, kind: str | None = None) -> torch.optim.Optimizer:
        s = self.settings
        if (kind or s.optimizer) == "adam":
            return torch.optim.Adam(particles.parameters(), lr=s.adam_lr)
        return torch.optim.SGD(particles.parameters(), lr=s.lr)

    def gradient_options(self) -> dict[str, Any]:
        """The options of every filter that takes gradient steps."""
        return {}

    def descending(
        self, kind: type[Descending], n: int, optimizer: str | None = None, **options: Any
    ) -> Descending:
        """n networks in a filter that takes gradient steps."""
        particles = self.ensemble(n)
        step = self.optimizer(particles, optimizer)
        return kind(particles, step, **self.gradient_options(), **options)

    def descent(self, optimizer: str | None = None) -> GradientDescent:
        """One network and its optimizer."""
        return self.descending(GradientDescent, 1, optimizer)

    def averaging(self) -> AveragingParticles:
        """Unweighted particles."""
        return self.descending(AveragingParticles, self.settings.particles)

    def weighted(self) -> WeightedParticleFilter:
        """The paper's filter."""
        s = self.settings
        return self.descending(
            WeightedParticleFilter,
            s.particles,
            weighting=s.weighting,
            loss_scale=s.loss_scale,
            min_ess=s.min_ess,
        )

    def weighted_by(self, rule: Weighting) -> GradientFilter:
        """The same particles with another rule of the weights."""
        s = self.settings
        return self.descending(GradientFilter, s.particles, weighting=rule, min_ess=s.min_ess)

    def bootstrap(self, perturbation: float, variant: str = "paper") -> BootstrapParticleFilter:
        """The paper's baseline filter."""
        particles = self.ensemble(self.settings.particles)
        return BootstrapParticleFilter(particles, perturbation=perturbation, variant=variant)


@dataclass(frozen=True)
class PolicySetup(Setup):
    """What a method for ProcGen is built from."""

    scenario: ProcgenTasks  # type: ignore[assignment]
    settings: Any  # `CloningSettings` or `LifelongSettings`
    trac: bool = False

    def with_trac(self) -> Self:
        """The same setup with optimizers in TRAC."""
        return replace(self, trac=True)

    def optimizer(self, particles: Ensemble, kind: str | None = None) -> torch.optim.Optimizer:
        optimizer = super().optimizer(particles, kind)
        return TRAC(optimizer) if self.trac else optimizer

    def gradient_options(self) -> dict[str, Any]:
        return {"max_grad_norm": self.settings.max_grad_norm}

    def lineage_bootstrap(self, perturbation: float) -> LineageBootstrapFilter:
        """The bootstrap filter that PPO needs."""
        particles = self.ensemble(self.settings.particles)
        return LineageBootstrapFilter(particles, perturbation=perturbation)

    def cloning(self, filter: ParticleFilter) -> BehaviourCloning:
        """The learner of behaviour cloning."""
        seed = self.settings.seed_of_batches(self.seed)
        return BehaviourCloning(filter, batch_size=self.settings.batch_size, seed=seed)

    def playing(
        self, filter: ParticleFilter, ewc: PolicyEWCSettings | None = None
    ) -> PolicyLearner:
        """The learner of lifelong learning by PPO."""
        consolidation = None
        if ewc is not None:
            consolidation = ewc.penalty(filter.particles, ewc.ewc_strength, logits=policy_logits)
        return PolicyLearner(
            self.scenario.environment(self.settings.envs),
            filter,
            self.settings.ppo(weighted=isinstance(filter, WeightedParticleFilter)),
            seed=self.settings.seed_of_batches(self.seed),
            consolidation=consolidation,
        )
