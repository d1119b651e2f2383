"""The learner of the lifelong benchmark: PPO level after level, with or without EWC."""

from collections.abc import Mapping

from torch import Tensor

from orderless.consolidation import EWC
from orderless.filters import ParticleFilter

from ...rl import PPO, PPOSettings, Rollout, UpdateInfo, VectorEnvironment
from .learner import register


class PolicyLearner:
    """For each level: `begin_level`, then `collect` and `update` repeatedly, then `end_level`.

    EWC applies to the policy only: its Fisher information is that of the actions.
    """

    def __init__(
        self,
        env: VectorEnvironment,
        filter: ParticleFilter,
        settings: PPOSettings,
        *,
        seed: int = 0,
        consolidation: EWC | None = None,
    ) -> None:
        self.filter = filter
        self.consolidation = consolidation
        if consolidation is not None:
            register(consolidation, filter, None)
        self.ppo = PPO(filter, env, settings, seed=seed)
        self._rollout: Rollout | None = None

    def begin_level(self, level: int) -> None:
        self.ppo.switch(level)
        self._set_penalty()

    def _set_penalty(self) -> None:
        """Record steps anew with the current penalty; recorded steps keep the old one."""
        consolidation = self.consolidation
        if consolidation is not None and consolidation.tasks:
            self.ppo.set_penalty(lambda *minibatch: consolidation.penalty())

    def collect(self) -> None:
        self._rollout = self.ppo.collect()

    @property
    def rollout(self) -> Rollout:
        if self._rollout is None:
            raise RuntimeError("there is no experience yet: call collect() first")
        return self._rollout

    def update(self) -> UpdateInfo:
        return self.ppo.update(self.rollout)

    def end_level(self) -> None:
        """Consolidate the level on frames of its last rollout."""
        if self.consolidation is not None:
            self.consolidation.end_task(self.experience())

    def check(self) -> None:
        """Raise if no particle is left."""
        self.filter.check(now=True)

    def experience(self) -> tuple[Tensor, Tensor]:
        """Frames `[B, ...]` and actions `[B]` of the last rollout, in random order."""
        frames = self.rollout.observations.flatten(0, 1)
        actions = self.rollout.actions.flatten()
        # a permutation that no epoch of the update used
        order = self.ppo.shuffle(len(actions), place=self.ppo.settings.epochs)
        order = order[self.rollout.valid.flatten()[order]]
        return frames[order], actions[order]

    def state_dict(self) -> dict[str, object]:
        parts = {"ppo": self.ppo, "consolidation": self.consolidation}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)
        self._set_penalty()
