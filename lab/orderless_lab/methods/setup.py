"""`Setup`: builds a method's networks, optimizers and filters from the settings."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from orderless.ensemble import Ensemble, Perturb
from orderless.filters import GradientDescent, ParticleFilter, WeightedParticleFilter

from ..scenarios import Scenario
from .learners import Learner
from .settings import Own, SharedSettings

# cached for the next cell: all methods and orders start from the same networks
_initial = lru_cache(maxsize=4)(Ensemble)


@dataclass(frozen=True)
class Setup:
    """What a method is built from."""

    scenario: Scenario
    settings: SharedSettings
    make_model: Callable[[], nn.Module]
    seed: int

    def learner(self, filter: ParticleFilter, **options: Any) -> Learner:
        """A `Learner` that trains a filter in the scenario; `options` are those of `Learner`."""
        return Learner(self.scenario, filter, **options)

    def config(self, kind: type[Own]) -> Own:
        """A method's own settings."""
        return self.settings.of(kind)

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
        particles = self.ensemble(self.settings.particles)
        return WeightedParticleFilter(particles, self.optimizer(particles), **self.weights())

    def weights(self) -> Any:
        """The options of a weighted filter."""
        return {key: getattr(self.settings, key) for key in ("weighting", "loss_scale", "min_ess")}
