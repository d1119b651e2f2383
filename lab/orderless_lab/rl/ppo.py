r"""Proximal policy optimisation over particles.

N policies pi_i and value functions V_i share one stream of experience. Each round:

1. The mixture mu = sum_j w_j pi_j acts for T steps in E environments, with the weights as they are.
2. Every particle computes its own advantages A_i from its own V_i on that experience. The data is
   mu's, so **V_i estimates the value of mu**, not of pi_i.
3. For some epochs of minibatches the filter takes steps on the N losses of `surrogate.py`.

The filter determines the weights: `WeightedParticleFilter` weighs by the whole loss
(`weigh_by="loss"`, the paper's), `PolicyWeightedFilter` by the importance-weighted advantage in the
first epoch (`weigh_by="policy"`); `AveragingParticles` and `GradientDescent` do not weigh. With one
particle this is PPO (Schulman et al. 2017), step for step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from orderless.filters import BootstrapParticleFilter, GradientFilter, WeightedParticleFilter
from orderless.filters.step import SteppedFilter
from orderless.filters.weights import effective_sample_size

from .environment import Saved, Step, VectorEnvironment, require_environment, with_rows
from .games import whole_number
from .keyed import permutation
from .mixture import Decision, MixturePolicy
from .policy_filter import LineageBootstrapFilter, PolicyWeightedFilter
from .rollout import RewardScaler, Rollout
from .settings import PPOSettings
from .staging import Staging
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
        weights, means = self.log_weights.exp(), {}
        for name in (*TERMS, "importance", "truncated", "clipped", "divergence"):
            terms = torch.where(weights > 0, weights * getattr(self, name), 0.0)
            means[name] = float(terms.sum())
        return {**means, "ess": float(self.ess)}


class PPO:
    """PPO of a filter's particles in an environment.

    Args:
        filter: a `GradientFilter` (`WeightedParticleFilter`, `PolicyWeightedFilter`,
            `AveragingParticles`, `GradientDescent`) or a `LineageBootstrapFilter`, over networks
            that return (logits, values). Its `max_grad_norm` clips per particle (0.5 is usual).
        env: a `VectorEnvironment`, such as `ProcgenLevels`; or several equal ones that take turns:
            one steps while the GPU computes the actions of another.
        settings: see `PPOSettings`; the defaults are ProcGen's.
        seed: the seed of actions and minibatches.
        penalty: `penalty(*minibatch) -> [N]`, added to the loss of the gradient (EWC, for example).

    `steps` counts environment steps (E per step), `updates` counts rounds, and `episodes` collects
    finished episodes until `take_episodes` is called. `state_dict` is complete between rounds: a
    resumed run continues exactly as an uninterrupted one.
    """

    def __init__(
        self,
        filter: SteppedFilter,
        env: VectorEnvironment | Sequence[VectorEnvironment],
        settings: PPOSettings | None = None,
        *,
        seed: int = 0,
        penalty: Callable[..., Tensor] | None = None,
    ) -> None:
        self.settings = settings or PPOSettings()
        self.envs = list(env) if isinstance(env, Sequence) else [env]
        _check(filter, self.envs, self.settings)
        self.env, self.n_envs = self.envs[0], sum(env.n_envs for env in self.envs)
        self.filter, self.seed = filter, whole_number("seed", seed)
        self.particles, self.device = filter.particles, filter.particles.device
        self.policy = MixturePolicy(
            filter, self.n_envs, actions=self.env.actions, act=self.settings.act, seed=self.seed
        )
        report = filter.report if isinstance(filter, PolicyWeightedFilter) else None
        lineage = filter.lineage if isinstance(filter, LineageBootstrapFilter) else None
        self.loss = Surrogate(self.particles, self.settings, report=report, lineage=lineage)
        self.set_penalty(penalty)
        self.steps = 0
        # By level, the counters from which its random choices continue on its next turn.
        self._draws: dict[int, int] = {}
        self._updates: dict[int, int] = {}
        self.policy.draws = _key(self.env.level, 0)
        self.episodes: list[Episode] = []
        self.scaler = self._new_scaler()
        self._rollout: Rollout | None = None
        self._staging = Staging(self.n_envs, self.device)
        # the next step of the rollout of each environment, by its first row
        self._places = {
            rows.start: torch.zeros(1, dtype=torch.int64, device=self.device)
            for _, rows in with_rows(self.envs)
        }
        frames = [env.reset()[0] for env in self.envs]
        shown = [f"{array.dtype} {array.shape[1:]}" for array in frames]
        for place, kind in enumerate(shown):
            if kind != shown[0]:
                raise ValueError(f"environment {place} shows {kind}, the first {shown[0]}")

    def set_penalty(self, penalty: Callable[..., Tensor] | None) -> None:
        """Replace the penalty, or record the same one again after its Python has changed."""
        self._step = self.filter.compile(self.loss, penalty)

    def _new_scaler(self) -> RewardScaler:
        return RewardScaler(self.n_envs, self.settings.discount, self.settings.reward_limit)

    def learn(
        self, steps: int, callback: Callable[[PPO, UpdateInfo], None] | None = None
    ) -> UpdateInfo | None:
        """Collect and update until `self.steps` has grown by at least `steps`, in whole rounds."""
        target, info = self.steps + steps, None
        while self.steps < target:
            info = self.update(self.collect())
            if callback is not None:
                callback(self, info)
        return info

    def switch(self, level: int) -> None:
        """Switch to another level of the environment; the scale of rewards is reset."""
        self._draws[self.env.level] = self.policy.draws
        for env in self.envs:
            env.switch(level)
        self.policy.draws = self._draws.get(self.env.level, _key(self.env.level, 0))
        self.scaler = self._new_scaler()

    @property
    def updates(self) -> int:
        return sum(self._updates.values())

    def shuffle(self, count: int, place: int) -> Tensor:
        """A permutation of 0 ... count-1 for this round on this level and this `place`."""
        key = _key(self.env.level, self._updates.get(self.env.level, 0))
        return permutation(self.seed, key, place, count, self.device)

    def take_episodes(self) -> list[Episode]:
        """The episodes finished since the last call, in the order of their ends."""
        taken, self.episodes = self.episodes, []
        return taken

    def collect(self) -> Rollout:
        """Collect T steps of the mixture; the next call overwrites the rollout.

        While the GPU computes actions, other environments step and the host processes the rewards
        and episodes of the last step. Rewards and flags stay on the host until the end; the
        decision itself writes everything else to the rollout.
        """
        length, shape = self.settings.steps, (self.settings.steps, self.n_envs)
        rewards, first = np.zeros(shape), np.zeros(shape, dtype=bool)
        flags = np.zeros((3, *shape), dtype=bool)

        def note(t: int, env: VectorEnvironment, rows: slice, step: Step) -> None:
            _, rewards[t, rows], terminated, truncated, info = step
            flags[:, t, rows] = terminated, truncated, info["valid"]
            if rows.start == 0:  # the first environment to make this step
                self.steps += self.n_envs
            for number in np.flatnonzero(env.ended):
                value, length = info["episode_return"][number], info["episode_length"][number]
                self.episodes.append(Episode(env.level, self.steps, float(value), int(length)))
            if rows.stop == self.n_envs:
                rewards[t] = self.scaler(rewards[t], first[t], flags[2, t])

        for env in self.envs:
            if env.under_way:  # the last rollout was interrupted
                env.reset()
        self.policy.begin()
        for place in self._places.values():
            place.zero_()
        for t in range(length):
            for env, rows in with_rows(self.envs):
                last = env.recv() if t > 0 else None
                first[t, rows] = env.first
                frames = self._staging.frames(env.observations, rows)
                decision = self.policy(frames, torch.from_numpy(env.first), rows, self._keep)
                actions = self._staging.fetch(decision.actions, rows)
                if last is not None:
                    note(t - 1, env, rows, last)
                env.send(actions())
        rollout = self._rollout
        assert rollout is not None
        for env, rows in with_rows(self.envs):
            last = env.recv()
            frames = self._staging.frames(env.observations, rows)
            rollout.values[:, length, rows] = self.policy.values(frames, rows)
            note(length - 1, env, rows, last)
        noted = rollout.rewards, rollout.terminated, rollout.truncated, rollout.valid
        for tensor, array in zip(noted, (rewards, *flags), strict=True):
            tensor.copy_(torch.from_numpy(array))
        rollout.log_weights.copy_(self.policy.log_weights)
        return rollout

    def _keep(self, rows: slice, decision: Decision) -> None:
        """Write a decision to the rollout; this is part of a recorded decision as well."""
        if self._rollout is None:
            self._rollout = Rollout.empty(self.settings.steps, self.n_envs, decision)
        place = self._places[rows.start]
        self._rollout.keep(place, rows, decision)
        place.add_(1)

    def update(self, rollout: Rollout) -> UpdateInfo:
        """Take the epochs of minibatch steps on one rollout."""
        settings = self.settings
        advantages = rollout.advantages(settings.discount, settings.trace)
        # The recursion is linear in V, so the mixture of advantages is the advantage of the
        # mixture's V. A particle whose values are not finite must not spoil it.
        finite = advantages.flatten(1).isfinite().all(1)
        weights = torch.where(finite, rollout.log_weights.exp(), 0.0)
        shared = self.filter.average(advantages, weights / weights.sum())
        targets = advantages + rollout.values[:, :-1]
        observations = rollout.observations.flatten(0, 1)
        decided = rollout.actions, rollout.log_policies, rollout.log_behaviour
        tensors = (*decided, advantages, targets, shared, rollout.valid)
        samples = [tensor.flatten(-2) for tensor in tensors]  # T and E are the last axes
        if isinstance(self.filter, LineageBootstrapFilter):
            self.filter.begin_lineage()
        self.loss.clear()
        for epoch in range(settings.epochs):
            counts = torch.full((), float(epoch == 0), device=self.device)
            for index in self.shuffle(len(observations), epoch).chunk(settings.minibatches):
                minibatch = [tensor[..., index] for tensor in samples]
                self._step(observations[index], *minibatch, counts)
        self._updates[self.env.level] = self._updates.get(self.env.level, 0) + 1
        return self._info()

    def _info(self) -> UpdateInfo:
        means = self.loss.means()
        energy = means.pop("energy")
        parts = torch.zeros((len(TERMS), self.particles.n), dtype=torch.float64, device=self.device)
        if isinstance(self.filter, WeightedParticleFilter):
            taken = self.settings.epochs * self.settings.minibatches
            if isinstance(self.filter, PolicyWeightedFilter):
                parts[0] = energy
            else:
                parts = torch.stack([means[name] for name in TERMS])
            parts = -self.filter.loss_scale * taken * parts
        log_weights, alive = self.filter.raw_log_weights.clone(), self.filter.alive.clone()
        return UpdateInfo(**means, log_weight_parts=parts, log_weights=log_weights, alive=alive)

    def state_dict(self) -> dict[str, object]:
        """The whole state between two rounds: filter, environments, policy, scaler, counters."""
        return {
            "filter": self.filter.state_dict(),
            "env": [env.state_dict() for env in self.envs],
            "policy": self.policy.state_dict(),
            "scaler": self.scaler.state_dict(),
            "steps": self.steps,
            "draws": [list(pair) for pair in self._draws.items()],
            "updates": [list(pair) for pair in self._updates.items()],
            "episodes": [list(episode) for episode in self.episodes],
        }

    def load_state_dict(self, state: Saved) -> None:
        """Resume with equal settings, seed and environment; others are refused before a change."""
        parts = states_of(state["env"])
        if len(parts) != len(self.envs):  # on a GPU the copies are in two parts
            parts = self.env.divided(parts, [env.n_envs for env in self.envs])
        for env, part in zip(self.envs, parts, strict=True):
            env.check_state(part)
        self.policy.check_state(state["policy"])
        scaler = self._new_scaler()
        scaler.load_state_dict(state["scaler"])
        steps = whole_number("steps", state["steps"])
        draws, updates = dict(state["draws"]), dict(state["updates"])
        episodes = [Episode(*episode) for episode in state["episodes"]]
        self.filter.load_state_dict(state["filter"])  # first, because it may still raise
        self.policy.load_state_dict(state["policy"])
        for env, part in zip(self.envs, parts, strict=True):
            env.load_state_dict(part)
        self.scaler, self.steps, self.episodes = scaler, steps, episodes
        self._draws, self._updates = draws, updates


def _key(level: int, number: int) -> int:
    """A counter per level, so that the order of levels does not change their random choices."""
    return (level << 31) + number


def states_of(environments: Any) -> list[Saved]:
    """The states in `state["env"]`; older files hold the state of their one environment."""
    return environments if isinstance(environments, list) else [environments]


def _check(filter: SteppedFilter, envs: list[VectorEnvironment], settings: PPOSettings) -> None:
    """Raise if filter, environments and settings do not fit together."""
    if not envs:
        raise ValueError("PPO needs at least one environment")
    for place, env in enumerate(envs):
        require_environment(env)
        if any(env is other for other in envs[:place]):
            raise ValueError(f"environment {place} is also an earlier one: pass each only once")
        if (env.actions, env.level) != (envs[0].actions, envs[0].level):
            raise ValueError(
                f"environment {place} has {env.actions} actions and is at level {env.level}, "
                f"the first has {envs[0].actions} and is at level {envs[0].level}"
            )
    n_envs = sum(env.n_envs for env in envs)
    if not isinstance(settings, PPOSettings):
        raise TypeError(f"settings must be PPOSettings, got {type(settings).__name__}")
    if isinstance(filter, BootstrapParticleFilter):
        if not isinstance(filter, LineageBootstrapFilter):
            raise TypeError(
                "PPO needs to know the ancestors of resampled particles: "
                "use LineageBootstrapFilter instead of BootstrapParticleFilter"
            )
    elif not isinstance(filter, GradientFilter):
        raise TypeError(f"PPO needs a filter that steps on losses, got {type(filter).__name__}")
    if isinstance(filter, PolicyWeightedFilter) != (settings.weigh_by == "policy"):
        raise ValueError(
            f"weigh_by={settings.weigh_by!r} does not go with {type(filter).__name__}: "
            "'policy' needs a PolicyWeightedFilter, 'loss' any other filter"
        )
    if settings.steps * n_envs % settings.minibatches:
        raise ValueError(
            f"{settings.steps} steps x {n_envs} environments do not divide into "
            f"{settings.minibatches} minibatches of equal size"
        )
