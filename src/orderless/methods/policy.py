"""The methods of the ProcGen benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from ..consolidation import EWC
from ..filters import (
    AveragingParticles,
    BootstrapParticleFilter,
    GradientDescent,
    WeightedParticleFilter,
)
from ..filters.stepping import SteppedFilter
from ..optim import TRAC
from ..rl import BehaviourCloning, LineageBootstrapFilter, PolicyWeightedFilter, policy_logits
from ..rl.tasks import ProcgenTasks
from .learners.policy import PolicyLearner
from .policy_settings import PolicySettings
from .registry import method
from .setup import Setup

PARTICLES = {
    "": "one network",
    "+wpf": "weighted particles",
    "+averaging": "the same particles, unweighted",
    "+bootstrap": "particles resampled and perturbed, no gradients",
}


@dataclass(frozen=True)
class PolicySetup(Setup):
    """What a method for ProcGen is built from."""

    scenario: ProcgenTasks  # type: ignore[assignment]
    settings: PolicySettings

    def filter(self, suffix: str, *, playing: bool, trac: bool = False) -> SteppedFilter:
        """The particles of one of `PARTICLES`; `playing`: in PPO, which has wishes of its own."""
        s = self.settings
        particles = self.ensemble(s.particles if suffix else 1)
        if suffix == "+bootstrap":
            kind = LineageBootstrapFilter if playing else BootstrapParticleFilter
            return kind(particles, perturbation=s.perturbation)
        optimizer = self.optimizer(particles)
        optimizer = TRAC(optimizer) if trac else optimizer
        if suffix != "+wpf":
            unweighted = AveragingParticles if suffix else GradientDescent
            return unweighted(particles, optimizer, max_grad_norm=s.max_grad_norm)
        by_policy = playing and s.weigh_by == "policy"
        weighted = PolicyWeightedFilter if by_policy else WeightedParticleFilter
        return weighted(
            particles,
            optimizer,
            weighting=s.weighting,
            loss_scale=s.loss_scale,
            min_ess=s.min_ess,
            max_grad_norm=s.max_grad_norm,
        )

    def player(self, suffix: str, *, trac: bool = False, ewc: bool = False) -> PolicyLearner:
        s = self.settings
        filter = self.filter(suffix, playing=True, trac=trac)
        consolidation = None
        if ewc:
            consolidation = EWC(
                filter.particles,
                s.strength("ewc", "domain"),
                fisher=s.fisher,
                mode=s.ewc_mode,
                fisher_samples=s.fisher_samples,
                batch_size=64,
                logits=policy_logits,
            )
        envs, settings = self.scenario.environments(s.envs), s.ppo(weighted=suffix == "+wpf")
        seed = s.seed_of_batches(self.seed)
        return PolicyLearner(envs, filter, settings, seed=seed, consolidation=consolidation)


def _register(suffix: str, what: str) -> None:
    many = bool(suffix)

    @method(f"bc{suffix}", f"behaviour cloning, {what}", particles=many, kind="cloning")
    def cloned(setup: PolicySetup) -> BehaviourCloning:
        s = setup.settings
        seed, filter = s.seed_of_batches(setup.seed), setup.filter(suffix, playing=False)
        return BehaviourCloning(filter, batch_size=s.batch_size, seed=seed)

    @method(f"ppo{suffix}", f"PPO, {what}", particles=many, kind="lifelong")
    def played(setup: PolicySetup) -> PolicyLearner:
        return setup.player(suffix)

    if suffix not in ("", "+wpf"):
        return

    @method(f"ppo+trac{suffix}", f"PPO with TRAC, {what}", particles=many, kind="lifelong")
    def tuned(setup: PolicySetup) -> PolicyLearner:
        return setup.player(suffix, trac=True)

    @method(f"ppo+ewc{suffix}", f"PPO with EWC, {what}", particles=many, kind="lifelong")
    def held(setup: PolicySetup) -> PolicyLearner:
        return setup.player(suffix, ewc=True)


for _suffix, _what in PARTICLES.items():
    _register(_suffix, _what)
