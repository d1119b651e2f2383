"""`PolicySetup`: builds the methods of the ProcGen benchmarks from the settings."""

from dataclasses import dataclass

import orderless as ol
from orderless.filters import ParticleFilter

from ..optim import TRAC
from ..rl import BehaviourCloning, LineageBootstrapFilter, policy_logits
from ..rl.tasks import ProcgenTasks
from .learners.policy import PolicyLearner
from .policy import PolicyEWCSettings
from .policy_settings import PolicySettings
from .setup import Setup
from .supervised import BootstrapSettings
from .supervised import ewc as make_ewc


@dataclass(frozen=True)
class PolicySetup(Setup):
    """What a method for ProcGen is built from."""

    scenario: ProcgenTasks  # type: ignore[assignment]
    settings: PolicySettings

    def filter(self, suffix: str, *, playing: bool, trac: bool = False) -> ParticleFilter:
        """The filter of one of `PARTICLES`; `playing`: for PPO instead of cloning."""
        s = self.settings
        particles = self.ensemble(s.particles if suffix else 1)
        if suffix == "+bootstrap":
            kind = LineageBootstrapFilter if playing else ol.BootstrapParticleFilter
            return kind(particles, perturbation=self.config(BootstrapSettings).perturbation)
        optimizer = self.optimizer(particles)
        optimizer = TRAC(optimizer) if trac else optimizer
        if suffix != "+wpf":
            unweighted = ol.AveragingParticles if suffix else ol.GradientDescent
            return unweighted(particles, optimizer, max_grad_norm=s.max_grad_norm)
        return ol.WeightedParticleFilter(
            particles, optimizer, max_grad_norm=s.max_grad_norm, **self.weights()
        )

    def build(
        self, suffix: str, *, cloning: bool = False, trac: bool = False, ewc: bool = False
    ) -> BehaviourCloning | PolicyLearner:
        """The learner of one method of `policy.py`."""
        s, seed = self.settings, self.settings.seed_of_batches(self.seed)
        filter = self.filter(suffix, playing=not cloning, trac=trac)
        if cloning:
            return BehaviourCloning(filter, batch_size=s.batch_size, seed=seed)
        consolidation = None
        if ewc:
            own, more = self.config(PolicyEWCSettings), {"logits": policy_logits}
            consolidation = make_ewc(self, filter.particles, own, own.ewc_strength, **more)
        env = self.scenario.environment(s.envs)
        settings = s.ppo(weighted=suffix == "+wpf")
        return PolicyLearner(env, filter, settings, seed=seed, consolidation=consolidation)
