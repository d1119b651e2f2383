r"""Proximal policy optimisation over particles.

N policies pi_i and value functions V_i share one stream of experience. Each round:

1. The mixture mu = sum_j w_j pi_j acts for T steps in E environments, with the weights as they are.
2. Every particle computes its own advantages A_i from its own V_i on that experience. The data is
   mu's, so **V_i estimates the value of mu**, not of pi_i.
3. For some epochs of minibatches the filter takes steps on the N losses of `surrogate.py`.

What the weights see is the filter's business: `WeightedParticleFilter` weighs by the whole loss
(`weigh_by="loss"`, the paper's), `PolicyWeightedFilter` by the importance-weighted advantage in the
first epoch (`weigh_by="policy"`); `AveragingParticles` and `GradientDescent` do not weigh. With one
particle this is PPO (Schulman et al. 2017), step for step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..filters import BootstrapParticleFilter, GradientFilter, WeightedParticleFilter
from ..filters.step import SteppedFilter
from .environment import Array, Saved, Step, VectorEnvironment, require_environment, with_rows
from .games import whole_number
from .keyed import permutation
from .mixture import Decision, MixturePolicy
from .policy_filter import LineageBootstrapFilter, PolicyWeightedFilter
from .reports import Episode, UpdateInfo
from .rollout import Rollout
from .scaling import RewardScaler
from .settings import PPOSettings
from .staging import Staging
from .surrogate import TERMS, Surrogate


class PPO:
    """PPO of a filter's particles in an environment.

    Args:
        filter: a `GradientFilter` (`WeightedParticleFilter`, `PolicyWeightedFilter`,
            `AveragingParticles`, `GradientDescent`) or a `LineageBootstrapFilter`, over networks
            that return (logits, values). Its `max_grad_norm` clips per particle (0.5 is usual).
        env: a `VectorEnvironment`, such as `ProcgenLevels`; or several alike that take turns: one
            plays while the GPU decides for another.
        settings: see `PPOSettings`; the defaults are ProcGen's.
        seed: of actions and minibatches.
        penalty: `penalty(*minibatch) -> [N]`, added to what the gradient sees (EWC, say).

    `steps` counts environment steps (E per step), `updates` rounds; `episodes` collects what
    finished, until somebody takes it. `state_dict` is whole between rounds: a resumed run goes on
    as if nothing had happened.
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
        # Of every level so far: where its random choices go on when its turn comes again.
        self._draws: dict[int, int] = {}
        self._updates: dict[int, int] = {}
        self.policy.draws = _key(self.env.level, 0)
        self.episodes: list[Episode] = []
        self.scaler = self._new_scaler()
        self._rollout: Rollout | None = None
        self._staging = Staging(self.n_envs, self.device)
        # of each environment, by its first row: which step of the rollout is next
        self._places = {
            rows.start: torch.zeros(1, dtype=torch.int64, device=self.device)
            for _, rows in with_rows(self.envs)
        }
        for place, one in enumerate(self.envs):
            frames, kind = one.reset()[0][0], self.env.observations[0]
            if (frames.shape, frames.dtype) != (kind.shape, kind.dtype):
                raise ValueError(
                    f"environment {place} shows {frames.dtype} {frames.shape}, "
                    f"the first {kind.dtype} {kind.shape}"
                )

    def set_penalty(self, penalty: Callable[..., Tensor] | None) -> None:
        """Have the gradient see another penalty, or the same one with other Python inside."""
        self._step = self.filter.compile(self.loss, penalty)

    def _new_scaler(self) -> RewardScaler:
        return RewardScaler(self.n_envs, self.settings.discount, self.settings.reward_limit)

    # ------------------------------------------------------------------ the loop

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
        """Go to another level of the environment; the scale of rewards starts anew."""
        self._draws[self.env.level] = self.policy.draws
        for env in self.envs:
            env.switch(level)
        self.policy.draws = self._draws.get(self.env.level, _key(self.env.level, 0))
        self.scaler = self._new_scaler()

    @property
    def updates(self) -> int:
        return sum(self._updates.values())

    def shuffle(self, count: int, place: int) -> Tensor:
        """0 ... count-1 in an order of this round on this level, another one at each `place`."""
        key = _key(self.env.level, self._updates.get(self.env.level, 0))
        return permutation(self.seed, key, place, count, self.device)

    def take_episodes(self) -> list[Episode]:
        """The episodes finished since the last call, in the order of their ends."""
        taken, self.episodes = self.episodes, []
        return taken

    # ------------------------------------------------------------------ experience

    def collect(self) -> Rollout:
        """T steps of the mixture; the rollout is overwritten by the next call.

        Nobody waits who could work: while the GPU decides, other environments play, the last step's
        rewards are scaled and its episodes counted. Rewards and flags stay on the host until the
        end; everything else is kept by the decision itself.
        """
        length, shape = self.settings.steps, (self.settings.steps, self.n_envs)
        rewards, first = np.zeros(shape), np.zeros(shape, dtype=bool)
        flags = np.zeros((3, *shape), dtype=bool)

        def note(t: int, env: VectorEnvironment, rows: slice, step: Step) -> None:
            _, rewards[t, rows], terminated, truncated, info = step
            flags[:, t, rows] = terminated, truncated, info["valid"]
            if rows.start == 0:  # the first to make this step; the last is below
                self.steps += self.n_envs
            self._keep_episodes(env, info)
            if rows.stop == self.n_envs:
                rewards[t] = self.scaler(rewards[t], first[t], flags[2, t])

        for env in self.envs:
            if env.under_way:  # somebody has interrupted the last rollout
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
        rollout.rewards.copy_(torch.from_numpy(rewards))
        for tensor, flag in zip(
            (rollout.terminated, rollout.truncated, rollout.valid), flags, strict=True
        ):
            tensor.copy_(torch.from_numpy(flag))
        rollout.log_weights.copy_(self.policy.log_weights)
        return rollout

    def _keep(self, rows: slice, decision: Decision) -> None:
        """Part of a decision, also of a recorded one: it finds its place in the rollout."""
        if self._rollout is None:
            self._rollout = Rollout.empty(self.settings.steps, self.n_envs, decision)
        place = self._places[rows.start]
        self._rollout.keep(place, rows, decision)
        place.add_(1)

    def _keep_episodes(self, env: VectorEnvironment, info: dict[str, Array]) -> None:
        for number in np.flatnonzero(env.ended):
            value, length = info["episode_return"][number], info["episode_length"][number]
            self.episodes.append(Episode(env.level, self.steps, float(value), int(length)))

    # ------------------------------------------------------------------ learning

    def update(self, rollout: Rollout) -> UpdateInfo:
        """Epochs of minibatches on one rollout."""
        settings, n = self.settings, self.particles.n
        advantages = rollout.advantages(settings.discount, settings.trace)
        # The recursion is linear in V: the mixture of advantages is that of the mixture's V. One
        # particle that is about to die of its values must not take the others along.
        finite = advantages.flatten(1).isfinite().all(1)
        weights = torch.where(finite, rollout.log_weights.exp(), 0.0)
        shared = self.filter.average(advantages, weights / weights.sum())
        targets = advantages + rollout.values[:, :-1]
        per_particle = [rollout.log_policies, advantages, targets]
        log_old, advantages, targets = (tensor.reshape(n, -1) for tensor in per_particle)
        observations, actions = rollout.observations.flatten(0, 1), rollout.actions.flatten()
        log_behaviour, shared = rollout.log_behaviour.flatten(), shared.flatten()
        valid = rollout.valid.flatten()
        if isinstance(self.filter, LineageBootstrapFilter):
            self.filter.begin_lineage()
        self.loss.clear()
        for epoch in range(settings.epochs):
            counts = torch.full((), float(epoch == 0), device=self.device)
            for index in self.shuffle(len(actions), epoch).chunk(settings.minibatches):
                self._step(
                    observations[index],
                    actions[index],
                    log_old[:, index],
                    log_behaviour[index],
                    advantages[:, index],
                    targets[:, index],
                    shared[index],
                    valid[index],
                    counts,
                )
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
        """Everything between two rounds: particles, weights, optimizer, environment, counters."""
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
        """Go on from a state of `state_dict`, with equal settings, seed and environment."""
        parts = states_of(state["env"])
        if len(parts) != len(self.envs):  # on a GPU the copies play in two parts
            parts = self.env.divided(parts, [env.n_envs for env in self.envs])
        self.policy.load_state_dict(state["policy"])
        for env, part in zip(self.envs, parts, strict=True):
            env.load_state_dict(part)
        self.filter.load_state_dict(state["filter"])
        self.scaler = self._new_scaler()
        self.scaler.load_state_dict(state["scaler"])
        self.steps = state["steps"]
        self._draws, self._updates = dict(state["draws"]), dict(state["updates"])
        self.episodes = [Episode(*episode) for episode in state["episodes"]]


def _key(level: int, number: int) -> int:
    """Levels have random choices of their own: their order changes the order and nothing else."""
    return (level << 31) + number


def states_of(environments: Any) -> list[Saved]:
    """The states in `state["env"]`; older files hold the one environment's alone."""
    return environments if isinstance(environments, list) else [environments]


def _check(filter: SteppedFilter, envs: list[VectorEnvironment], settings: PPOSettings) -> None:
    """What fits together and what does not, in sentences."""
    if not envs:
        raise ValueError("PPO needs at least one environment")
    for place, env in enumerate(envs):
        require_environment(env)
        if any(env is other for other in envs[:place]):
            raise ValueError(f"environment {place} is among those before it: they must be apart")
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
                "PPO must know whose copy a resampled particle is: "
                "use LineageBootstrapFilter instead of BootstrapParticleFilter"
            )
    elif not isinstance(filter, GradientFilter):
        raise TypeError(f"PPO needs a filter that steps on losses, got {type(filter).__name__}")
    by_policy = isinstance(filter, PolicyWeightedFilter)
    if by_policy != (settings.weigh_by == "policy"):
        raise ValueError(
            f"weigh_by={settings.weigh_by!r} does not go with {type(filter).__name__}: "
            "'policy' needs a PolicyWeightedFilter, 'loss' any other filter"
        )
    if settings.steps * n_envs % settings.minibatches:
        raise ValueError(
            f"{settings.steps} steps x {n_envs} environments do not divide into "
            f"{settings.minibatches} minibatches of equal size"
        )
