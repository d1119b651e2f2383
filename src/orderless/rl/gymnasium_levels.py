"""Any Gymnasium vector environments as the levels of one game.

Next-step resets, Gymnasium's default, are the convention here too, so there is little to translate.
Nothing here imports Gymnasium: whoever has an environment has it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from .environment import Array, VectorEnvironment


class GymnasiumLevels(VectorEnvironment):
    """Vector environments of one shape, one for each level; `switch(level)` changes between them.

    Args:
        levels: one `gymnasium.vector.VectorEnv` or several, with as many copies each, the same
            discrete actions and observations of the same shape, as `gymnasium.make_vec` makes them.
        seed: of their first `reset`; a level's later ones go on from there.

    Observations of float64 become float32. Gymnasium cannot save an environment, so after
    `load_state_dict` the copies start new episodes, from a seed of their own.
    """

    def __init__(self, levels: Any, *, seed: int = 0) -> None:
        self.levels = list(levels) if isinstance(levels, Sequence) else [levels]
        if not self.levels:
            raise ValueError("GymnasiumLevels needs at least one vector environment")
        for place, env in enumerate(self.levels):
            _check(env, self.levels[0], place)
        super().__init__(self.levels[0].num_envs, int(self.levels[0].single_action_space.n))
        self.seed, self.resumes = seed, 0
        self._seeded = [False] * len(self.levels)

    def switch(self, level: int) -> tuple[Array, dict[str, Array]]:
        """Start on another level; the one left behind waits for its turn."""
        level = operator.index(level)
        if not 0 <= level < len(self.levels):
            raise ValueError(f"level must lie in 0..{len(self.levels) - 1}, got {level}")
        if self._waiting:
            self.recv()
        self.level = level
        return self.reset()

    def close(self) -> None:
        for env in self.levels:
            env.close()

    # ------------------------------------------------------------------ stepping

    def _start(self) -> Array:
        seed = None if self._seeded[self.level] else self.seed + 1_000_003 * self.resumes
        self._seeded[self.level] = True
        return _single(self.levels[self.level].reset(seed=seed)[0])

    def _send(self, actions: Array) -> None:
        self._actions = actions
        env = self.levels[self.level]
        if hasattr(env, "step_async"):  # plays meanwhile; the others do when asked for the result
            env.step_async(actions)

    def _receive(self) -> tuple[Array, Array, Array, Array]:
        env = self.levels[self.level]
        step = env.step_wait() if hasattr(env, "step_wait") else env.step(self._actions)
        observations, rewards, terminated, truncated, _ = step
        return _single(observations), np.asarray(rewards), terminated, truncated & ~terminated

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level, "resumes": self.resumes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resumes = int(state["resumes"]) + 1
        self._seeded = [False] * len(self.levels)
        self.switch(state["level"])


def _single(observations: Array) -> Array:
    """In memory of its own, and no wider than the networks' numbers."""
    wide = observations.dtype == np.float64
    return np.array(observations, dtype=np.float32 if wide else observations.dtype)


def _check(env: Any, first: Any, place: int) -> None:
    """What PPO cannot play, in sentences."""
    if not hasattr(env, "single_action_space"):
        raise TypeError(
            f"level {place} is a {type(env).__name__}, not a vector environment: make one with "
            "gymnasium.make_vec(name, num_envs=8)"
        )
    actions, frames = env.single_action_space, env.single_observation_space
    if not hasattr(actions, "n") or getattr(actions, "start", 0) != 0:
        raise ValueError(f"level {place} has actions {actions}: PPO here needs Discrete(n), from 0")
    if not isinstance(frames.shape, tuple):
        raise ValueError(f"level {place} has observations {frames}: an array is needed")
    reset = env.metadata.get("autoreset_mode")
    if getattr(reset, "name", "NEXT_STEP") != "NEXT_STEP":
        raise ValueError(
            f"level {place} resets by {reset.name}: make it with next-step resets, Gymnasium's "
            "default"
        )
    ours = env.num_envs, actions.n, frames.shape
    theirs = first.num_envs, first.single_action_space.n, first.single_observation_space.shape
    if ours != theirs:
        names = "(copies, actions, shape of observations)"
        raise ValueError(f"level {place} has {names} {ours}, but level 0 has {theirs}")
