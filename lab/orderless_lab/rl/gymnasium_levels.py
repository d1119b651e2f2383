"""Any Gymnasium vector environments as the levels of one game.

Both use next-step resets, Gymnasium's default, so little is translated. This module does not import
Gymnasium.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .environment import Array, Saved, VectorEnvironment
from .games import whole_number


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
        if not self.levels:
            raise ValueError("GymnasiumLevels needs at least one vector environment")
        for place, env in enumerate(self.levels):
            _check(env, self.levels[0], place)
            if any(env is other for other in self.levels[:place]):
                raise ValueError(f"level {place} is also an earlier level: pass each only once")
        super().__init__(self.levels[0].num_envs, int(self.levels[0].single_action_space.n))
        self.seed = whole_number("seed", seed, 0)
        self.resumes = 0
        self._seeded = [-1] * len(self.levels)  # after how many resumes each was last seeded

    def switch(self, level: int) -> tuple[Array, dict[str, Array]]:
        """Start on another level; the old one stays open."""
        level = self._known(level)
        if self.under_way:
            self.recv()
        self.level = level
        return self.reset()

    def _known(self, level: int) -> int:
        level = whole_number("level", level)
        if not 0 <= level < len(self.levels):
            raise ValueError(f"level must lie in 0..{len(self.levels) - 1}, got {level}")
        return level

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

    def _send(self, actions: Array) -> None:
        self._actions = actions
        env = self.levels[self.level]
        if hasattr(env, "step_async"):  # starts to step; the others step in `_receive`
            env.step_async(actions)

    def _receive(self) -> tuple[Array, Array, Array, Array]:
        env = self.levels[self.level]
        step = env.step_wait() if hasattr(env, "step_wait") else env.step(self._actions)
        rewards = np.array(step[1], dtype=np.float64)
        terminated, truncated = (np.array(flags, dtype=bool) for flags in step[2:4])
        for name, array in (("rewards", rewards), ("ends", terminated), ("ends", truncated)):
            if array.shape != (self.n_envs,):
                raise ValueError(
                    f"level {self.level} gave {name} of shape {array.shape}, "
                    f"but there are {self.n_envs} copies"
                )
        return _frames(step[0]), rewards, terminated, truncated & ~terminated

    def state_dict(self) -> dict[str, object]:
        return {"level": self.level, "resumes": self.resumes, "seeded": list(self._seeded)}

    def load_state_dict(self, state: Saved) -> None:
        if len(state["seeded"]) != len(self.levels):
            raise ValueError(
                f"this state is of {len(state['seeded'])} levels, but there are {len(self.levels)}"
            )
        seeded = [whole_number("a number of resumes", count) for count in state["seeded"]]
        resumes = whole_number("resumes", state["resumes"])
        level = self._known(state["level"])
        self.resumes = resumes + 1
        self._seeded = seeded
        self.switch(level)


def _frames(observations: Any) -> Array:
    """A copy of the observations, floats as float32."""
    array = np.asarray(observations)
    return np.array(array, dtype=_kind(array.dtype))


def _kind(dtype: Any) -> Any:
    return np.dtype(np.float32) if np.issubdtype(dtype, np.floating) else dtype


def _check(env: Any, first: Any, place: int) -> None:
    """Raise if PPO cannot use an environment, or if it differs from the first level."""
    if not hasattr(env, "single_action_space"):
        raise TypeError(
            f"level {place} is a {type(env).__name__}, not a vector environment: make one with "
            "gymnasium.make_vec(name, num_envs=8)"
        )
    actions = env.single_action_space
    frames = env.single_observation_space
    if getattr(actions, "start", None) != 0:  # only Discrete has one
        raise ValueError(f"level {place} has actions {actions}: PPO here needs Discrete(n), from 0")
    if not isinstance(frames.shape, tuple) or frames.dtype is None:
        raise ValueError(f"level {place} has observations {frames}: an array is needed")
    reset = env.metadata.get("autoreset_mode")
    if reset is not None and getattr(reset, "name", None) != "NEXT_STEP":
        raise ValueError(f"level {place} resets by {reset}: use NEXT_STEP, Gymnasium's default")
    described = [
        f"{one.num_envs} copies, {one.single_action_space.n} actions and observations "
        f"{_kind(one.single_observation_space.dtype)} {one.single_observation_space.shape}"
        for one in (env, first)
    ]
    if described[0] != described[1]:
        raise ValueError(f"level {place} has {described[0]}, but level 0 has {described[1]}")
