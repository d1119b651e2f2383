r"""Proximal policy optimisation over particles.

N policies pi_i and value functions V_i share one stream of experience. Each round:

1. The mixture mu = sum_j w_j pi_j acts for T steps in E environments, with the weights as they are.
2. Every particle computes its own advantages A_i from its own V_i on that experience. The data is
   mu's, so **V_i estimates the value of mu**, not of pi_i.
3. For some epochs of minibatches the filter takes steps on the N losses of `surrogate.py`.

The filter determines the weights. `WeightedParticleFilter` weighs by the whole loss
(`weigh_by="loss"`, the paper's) or by the importance-weighted advantage in the first epoch
(`weigh_by="policy"`); `AveragingParticles` and `GradientDescent` do not weigh. With one particle
this is PPO (Schulman et al. 2017), step for step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from orderless.ensemble import Ensemble
from orderless.filters import (
    BootstrapParticleFilter,
    GradientFilter,
    Trapezoid,
    WeightedParticleFilter,
)
from orderless.filters.weights import effective_sample_size

from .environment import Array, Saved, VectorEnvironment, require_environment
from .keyed import permutation
from .mixture import Filter, MixturePolicy
from .networks import NO_VALUES
from .rollout import RewardScaler, Rollout
from .settings import PPOSettings
from .surrogate import TERMS, Surrogate


class Episode(NamedTuple):
    """A finished episode: its level, the step count of PPO at its end, its return and length."""

    level: int
    step: int
    value: float
    length: int


@dataclass(frozen=True)
class UpdateInfo:
    """Statistics of one update, per particle `[N]`, on the device.

    `policy`, `value`, `entropy`: the terms of the loss with their coefficients, means over all
    evaluations; `importance`: mean c; `truncated`: share of samples with pi_old / mu above the
    limit; `clipped`: share with r outside of the clip range; `divergence`: KL(pi_old, pi),
    estimated. `log_weight_parts` `[3, N]`: what policy, value and entropy added to each
    log-weight before normalisation (with `"linearized"` weights, to first order). `log_weights`
    are the raw ones after the update; `alive` marks the particles that are left.
    """

    policy: Tensor
    value: Tensor
    entropy: Tensor
    importance: Tensor
    truncated: Tensor
    clipped: Tensor
    divergence: Tensor
    log_weight_parts: Tensor
    log_weights: Tensor
    alive: Tensor

    @property
    def ess(self) -> Tensor:
        return effective_sample_size(self.log_weights)

    def summary(self) -> dict[str, float]:
        """Weighted means over particles as plain numbers; waits for the device."""
        weights = self.log_weights.exp()
        means = {}
        for name in (*TERMS, "importance", "truncated", "clipped", "divergence"):
            terms = torch.where(weights > 0, weights * getattr(self, name), 0.0)
            means[name] = float(terms.sum())
        return {**means, "ess": float(self.ess)}


class LineageBootstrapFilter(BootstrapParticleFilter):
    """The bootstrap filter with a record of each particle's ancestor.

    After resampling, particle i may be a copy of another. The quantities recorded per particle
    during collection (log pi_old, advantages) are in its ancestor's row, `lineage[i]`.
    """

    def __init__(self, particles: Ensemble, **options: object) -> None:
        super().__init__(particles, **options)  # type: ignore[arg-type]
        self.lineage = torch.arange(particles.n, device=particles.device)

    def begin_lineage(self) -> None:
        """Make every particle its own ancestor."""
        self.lineage.copy_(torch.arange(self.particles.n, device=self.lineage.device))

    def travelling(self) -> list[Tensor]:
        return [*super().travelling(), self.lineage]


class PPO:
    """PPO of a filter's particles in an environment.

    Args:
        filter: a `GradientFilter` (`WeightedParticleFilter`, `AveragingParticles`,
            `GradientDescent`) or a `LineageBootstrapFilter`, over networks that return (logits,
            values). Its `max_grad_norm` clips per particle (0.5 is usual).
        env: a `VectorEnvironment`, such as `ProcgenLevels`.
        settings: see `PPOSettings`; the defaults are ProcGen's.
        seed: the seed of actions and minibatches.
        penalty: `penalty(*minibatch) -> [N]`, added to the loss of the gradient (EWC, for example).

    `steps` counts environment steps (E per step), `updates` counts rounds, and `episodes` collects
    finished episodes until `take_episodes` is called. `state_dict` is complete between rounds: a
    resumed run continues exactly as an uninterrupted one.
    """

    def __init__(
        self,
        filter: Filter,
        env: VectorEnvironment,
        settings: PPOSettings | None = None,
        *,
        seed: int = 0,
        penalty: Callable[..., Tensor] | None = None,
    ) -> None:
        self.settings = PPOSettings() if settings is None else settings
        _check(filter, env, self.settings)
        self.filter = filter
        self.env = env
        self.seed = seed
        self.particles = filter.particles
        self.device = filter.particles.device
        act = self.settings.act
        self.policy = MixturePolicy(filter, env.n_envs, env.actions, act=act, seed=self.seed)
        self.lineage = filter.lineage if isinstance(filter, LineageBootstrapFilter) else None
        self.loss = Surrogate(self.particles, self.settings, self.lineage)
        self.set_penalty(penalty)
        self.steps = 0
        # By level, the counters from which its random choices continue on its next turn.
        self._draws: dict[int, int] = {}
        self._updates: Counter[int] = Counter()
        self.policy.draws = _key(env.level, 0)
        self.episodes: list[Episode] = []
        self.scaler = self._new_scaler()
        env.reset()

    def set_penalty(self, penalty: Callable[..., Tensor] | None) -> None:
        """Replace the penalty, or record the same one again after its Python has changed."""

        def moving(*minibatch: Tensor, outputs: Tensor) -> Tensor:
            """With weights by policy, what the gradient adds to what is weighed: the loss."""
            return outputs if penalty is None else outputs + penalty(*minibatch)

        by_policy = self.settings.weigh_by == "policy"
        self._step = self.filter.compile(self.loss, moving if by_policy else penalty)

    def _new_scaler(self) -> RewardScaler:
        return RewardScaler(self.env.n_envs, self.settings.discount, self.settings.reward_limit)

    def learn(self, steps: int) -> UpdateInfo | None:
        """Collect and update until `self.steps` has grown by at least `steps`, in whole rounds."""
        target = self.steps + steps
        info = None
        while self.steps < target:
            info = self.update(self.collect())
        return info

    def switch(self, level: int) -> None:
        """Switch to another level of the environment; the scale of rewards is reset."""
        self._draws[self.env.level] = self.policy.draws
        self.env.switch(level)
        self.policy.draws = self._draws.get(self.env.level, _key(self.env.level, 0))
        self.scaler = self._new_scaler()

    def shuffle(self, count: int, place: int) -> Tensor:
        """A permutation of 0 ... count-1 for this round on this level and this `place`."""
        key = _key(self.env.level, self._updates[self.env.level])
        return permutation(self.seed, key, place, count, self.device)

    def take_episodes(self) -> list[Episode]:
        """The episodes finished since the last call, in the order of their ends."""
        taken = self.episodes
        self.episodes = []
        return taken

    def collect(self) -> Rollout:
        """Collect T steps of the mixture."""
        env = self.env
        if not env.started:  # the last rollout was interrupted
            env.reset()
        self.policy.begin()
        decisions = []
        rewards = []
        flags = []
        for _ in range(self.settings.steps):
            first = env.first
            decision = self.policy(env.observations, first)
            if decision.values is None:
                raise TypeError(NO_VALUES)
            _, gained, terminated, truncated, info = env.step(decision.actions.cpu().numpy())
            decisions.append(decision)
            rewards.append(self.scaler(gained, first, info["valid"]))
            flags.append((terminated, truncated, info["valid"]))
            self.steps += env.n_envs
            self._note_episodes(info)
        last_values = self.policy.values(env.observations)
        return Rollout.of(decisions, last_values, rewards, flags, self.policy.log_weights)

    def _note_episodes(self, info: dict[str, Array]) -> None:
        for number in np.flatnonzero(self.env.ended):
            value = float(info["episode_return"][number])
            length = int(info["episode_length"][number])
            self.episodes.append(Episode(self.env.level, self.steps, value, length))

    def update(self, rollout: Rollout) -> UpdateInfo:
        """Take the epochs of minibatch steps on one rollout."""
        settings = self.settings
        advantages = rollout.advantages(settings.discount, settings.trace)
        shared = _mixed(advantages, rollout.log_weights.exp()).flatten()
        observations = rollout.observations.flatten(0, 1)
        actions = rollout.actions.flatten()
        behaviour = rollout.log_behaviour.flatten()
        valid = rollout.valid.flatten()
        # what belongs to a particle, with T and E as one axis
        log_old = rollout.log_policies.flatten(1)
        targets = (advantages + rollout.values[:, :-1]).flatten(1)
        advantages = advantages.flatten(1)
        if isinstance(self.filter, LineageBootstrapFilter):
            self.filter.begin_lineage()
        self.loss.clear()
        for epoch in range(settings.epochs):
            counts = torch.full((), float(epoch == 0), device=self.device)
            for index in self.shuffle(len(actions), epoch).chunk(settings.minibatches):
                step = self._step(
                    observations[index], actions[index], log_old[:, index], behaviour[index],
                    advantages[:, index], targets[:, index], shared[index], valid[index], counts,
                )  # fmt: skip
        self._updates[self.env.level] += 1
        return self._info(step.log_weights.clone(), step.alive.clone())

    def _info(self, log_weights: Tensor, alive: Tensor) -> UpdateInfo:
        means = self.loss.means()
        energy = means.pop("energy")
        parts = torch.zeros((len(TERMS), self.particles.n), dtype=torch.float64, device=self.device)
        if isinstance(self.filter, WeightedParticleFilter):
            if self.settings.weigh_by == "policy":
                parts[0] = energy
            else:
                parts = torch.stack([means[name] for name in TERMS])
            taken = self.settings.epochs * self.settings.minibatches
            parts = -self.filter.loss_scale * taken * parts
        return UpdateInfo(**means, log_weight_parts=parts, log_weights=log_weights, alive=alive)

    def state_dict(self) -> dict[str, object]:
        """The whole state between two rounds: filter, environment, policy, scaler, counters."""
        return {
            "filter": self.filter.state_dict(),
            "env": self.env.state_dict(),
            "policy": self.policy.state_dict(),
            "scaler": self.scaler.state_dict(),
            "steps": self.steps,
            "draws": [list(pair) for pair in self._draws.items()],
            "updates": [list(pair) for pair in self._updates.items()],
            "episodes": [list(episode) for episode in self.episodes],
        }

    def load_state_dict(self, state: Saved) -> None:
        """Resume with equal settings, seed and environment; after an error load another state."""
        self.filter.load_state_dict(state["filter"])
        self.policy.load_state_dict(state["policy"])
        self.env.load_state_dict(state["env"])
        self.scaler = self._new_scaler()
        self.scaler.load_state_dict(state["scaler"])
        self.steps = state["steps"]
        self._draws = dict(state["draws"])
        self._updates = Counter(dict(state["updates"]))
        self.episodes = [Episode(*episode) for episode in state["episodes"]]


def _key(level: int, number: int) -> int:
    """A counter per level, so that the order of levels does not change their random choices."""
    return (level << 31) + number


def _mixed(advantages: Tensor, weights: Tensor) -> Tensor:
    """The advantage of the mixture's value function, from those of all particles `[N, T, E]`.

    The recursion is linear in V, so it is the mixture of advantages. A particle without weight, or
    whose values are not finite, is no part of it.
    """
    counted = advantages.flatten(1).isfinite().all(1) & (weights > 0)
    shares = torch.where(counted, weights, 0.0)
    shares = (shares / shares.sum()).to(advantages.dtype).view(-1, 1, 1)
    return torch.where(shares > 0, shares * advantages, 0.0).sum(0)


def _check(filter: Filter, env: VectorEnvironment, settings: PPOSettings) -> None:
    """Raise if filter, environment and settings do not fit together."""
    require_environment(env)
    if not isinstance(filter, GradientFilter | LineageBootstrapFilter):
        raise TypeError(
            "PPO needs a GradientFilter, or a LineageBootstrapFilter, which knows the ancestors of "
            f"resampled particles; got {type(filter).__name__}"
        )
    trapezoid = isinstance(filter, WeightedParticleFilter) and isinstance(
        filter.weighting, Trapezoid
    )
    if settings.weigh_by == "policy" and not trapezoid:
        raise ValueError(
            "weigh_by='policy' needs a WeightedParticleFilter with weighting='trapezoid', for what "
            f"it weighs by has no gradient; got {type(filter).__name__}"
        )
    if settings.steps * env.n_envs % settings.minibatches:
        raise ValueError(
            f"{settings.steps} steps x {env.n_envs} environments do not divide into "
            f"{settings.minibatches} minibatches of equal size"
        )
