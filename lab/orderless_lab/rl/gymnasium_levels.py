"""Any Gymnasium vector environments as the levels of one game.

Both use next-step resets, Gymnasium's default, so little is translated. This module does not import
Gymnasium.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .environment import Array, Saved, VectorEnvironment


class GymnasiumLevels(VectorEnvironment):
    """Vector environments of one shape, one for each level; `switch(level)` changes between them.

    Args:
        levels: one `gymnasium.vector.VectorEnv` or several, as from `gymnasium.make_vec`, with
            equal numbers of copies, discrete actions, and observation shapes and types.
        seed: E copies start from the seeds E*seed, E*seed + 1, ..., unless the environment takes
            its seed when it is made, as envpool's do; later episodes of a level continue from
            there.

    An environment without an `autoreset_mode` is assumed to reset in the next step. Observations
    reach the network unchanged, floats as float32; states of a `Discrete` space are integers
    `[E]`. Gymnasium cannot save an environment, nor the statistics of a wrapper such as
    `NormalizeObservation`: after `load_state_dict` the copies start new episodes from other seeds,
    and wrappers start from zero.
    """

    def __init__(self, levels: Any, *, seed: int = 0) -> None:
        self.levels = list(levels) if isinstance(levels, Sequence) else [levels]
        for number, env in enumerate(self.levels):
            _check(env, number, self.levels[0])
        super().__init__(self.levels[0].num_envs, int(self.levels[0].single_action_space.n))
        self.seed = seed
        self.resumes = 0
        self._seeded = [-1] * len(self.levels)  # after how many resumes each was last seeded

    def switch(self, level: int) -> tuple[Array, dict[str, Array]]:
        """Start on another level; the old one stays open."""
        if not 0 <= level < len(self.levels):
            raise ValueError(f"level must lie in 0..{len(self.levels) - 1}, got {level}")
        self.level = level
        return self.reset()

    def close(self) -> None:
        for env in self.levels:
            env.close()

    def _start(self) -> Array:
        seeded = self._seeded[self.level]
        seed = None
        if seeded < self.resumes:
            # a level that was not played before starts as it would have without a resume
            seed = self.n_envs * self.seed + (0 if seeded < 0 else 1_000_003 * self.resumes)
            self._seeded[self.level] = self.resumes
        return _frames(self.levels[self.level].reset(seed=seed)[0])

    def _step(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        frames, rewards, terminated, truncated, _ = self.levels[self.level].step(actions)
        terminated = np.array(terminated, dtype=bool)
        truncated = np.array(truncated, dtype=bool) & ~terminated
        return _frames(frames), np.array(rewards, dtype=np.float64), terminated, truncated

    def state_dict(self) -> dict[str, object]:
        return {"level": self.level, "resumes": self.resumes, "seeded": list(self._seeded)}

    def load_state_dict(self, state: Saved) -> None:
        if len(state["seeded"]) != len(self.levels):
            raise ValueError(
                f"this state is of {len(state['seeded'])} levels, but there are {len(self.levels)}"
            )
        self._seeded = list(state["seeded"])
        self.resumes = state["resumes"] + 1
        self.switch(state["level"])


def _frames(observations: Any) -> Array:
    """A copy of the observations, floats as float32."""
    floats = np.issubdtype(np.asarray(observations).dtype, np.floating)
    return np.array(observations, dtype=np.float32 if floats else None)


def _check(env: Any, number: int, first: Any) -> None:
    """Raise if PPO cannot use an environment, alone or beside the first."""
    if not hasattr(env, "single_action_space"):
        raise TypeError(
            f"level {number} is a {type(env).__name__}, not a vector environment: make one with "
            "gymnasium.make_vec(name, num_envs=8)"
        )
    actions = env.single_action_space
    frames = env.single_observation_space
    if getattr(actions, "start", None) != 0:  # only Discrete has one
        raise ValueError(f"level {number} has actions {actions}: Discrete(n), from 0, is needed")
    if frames.dtype is None:
        raise ValueError(f"level {number} has observations {frames}: an array is needed")
    reset = env.metadata.get("autoreset_mode")
    if reset is not None and getattr(reset, "name", None) != "NEXT_STEP":
        raise ValueError(f"level {number} resets by {reset}: use NEXT_STEP, Gymnasium's default")
    ours, theirs = (
        (each.num_envs, each.single_action_space, each.single_observation_space.shape)
        for each in (env, first)
    )
    if ours != theirs:
        raise ValueError(f"level {number} has copies, actions, frames {ours}, level 0 {theirs}")
