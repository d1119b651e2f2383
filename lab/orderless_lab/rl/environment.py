"""The environment interface of PPO: many copies stepped together, with automatic resets.

The conventions are Gymnasium's for vector environments with *next-step* automatic resets. The step
that ends an episode returns its true last frame. The next step ignores the action and returns the
first frame of the next episode with reward 0: that transition is not experience, and
`info["valid"]` is False for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Saved = Mapping[str, Any]  # a `state_dict` read from a file
Step = tuple[Array, Array, Array, Array, dict[str, Array]]


class VectorEnvironment(ABC):
    """E copies of one environment with A actions; the base class of all environments.

    A subclass defines `_start() -> observations` and `_step(actions) -> (observations, rewards,
    terminated, truncated)`, with next-step resets and new arrays every time, `switch`, and its
    state. This class checks actions, sums rewards to returns and tracks episodes:

    - `observations` `[E, ...]`: the current frames, for which the next actions are chosen.
    - `first` `[E]`: the frame is the first of its episode.
    - `ended` `[E]`: the frame is the last of its episode, so the next action will be ignored.
    - `info["valid"]` `[E]`: this step's action was not ignored, i.e. `ended` was False before it.
    - `info["episode_return"]`, `info["episode_length"]` `[E]`: of episodes that end with this step,
      NaN and 0 elsewhere.
    """

    level: int = 0

    def __init__(self, n_envs: int, actions: int) -> None:
        self.n_envs = n_envs
        self.actions = actions
        self.observations: Array = np.empty(0)
        self.first = np.zeros(n_envs, dtype=bool)
        self.ended = np.zeros(n_envs, dtype=bool)
        self.returns = np.zeros(n_envs)
        self.lengths = np.zeros(n_envs, dtype=np.int64)
        self.started = False  # False again after a step that was interrupted

    @abstractmethod
    def _start(self) -> Array: ...

    @abstractmethod
    def _step(self, actions: Array) -> tuple[Array, Array, Array, Array]: ...

    @abstractmethod
    def switch(self, level: int) -> tuple[Array, dict[str, Array]]:
        """Switch to another level and start there."""

    @abstractmethod
    def state_dict(self) -> dict[str, object]:
        """The state from which `load_state_dict` resumes."""

    @abstractmethod
    def load_state_dict(self, state: Saved) -> None:
        """Restore `observations`, `first`, `ended`, `returns` and `lengths`."""

    def close(self) -> None:  # noqa: B027, most have nothing to release
        """Release the copies' resources; by default there are none."""

    def normalize(self, returns: ArrayLike) -> Array:
        """Returns on the scale on which games are compared; by default unchanged."""
        return np.asarray(returns, dtype=np.float64)

    def reset(self) -> tuple[Array, dict[str, Array]]:
        """Start a new episode in every copy: `(observations [E, ...], info)`."""
        self.observations = self._start()
        self.first[:] = True
        self.ended[:] = False
        self.returns[:] = 0.0
        self.lengths[:] = 0
        self.started = True
        return self.observations, {"valid": np.ones(self.n_envs, dtype=bool)}

    def step(self, actions: ArrayLike) -> Step:
        """`(observations, rewards, terminated, truncated, info)`, each with a leading E."""
        if not self.started:
            raise RuntimeError("the environment has not started: call reset() before a step")
        checked = self._checked(actions)
        self.started = False  # after an error the copies are in an unknown state
        observations, rewards, terminated, truncated = self._step(checked)
        self.started = True
        valid = ~self.ended
        self.returns = np.where(valid, self.returns + rewards, 0.0)
        self.lengths = np.where(valid, self.lengths + 1, 0)
        self.observations = observations
        self.first = ~valid
        self.ended = terminated | truncated
        info = {
            "valid": valid,
            "episode_return": np.where(self.ended, self.returns, np.nan),
            "episode_length": np.where(self.ended, self.lengths, 0),
        }
        return observations, rewards, terminated, truncated, info

    def _checked(self, actions: ArrayLike) -> Array:
        """Check actions and convert them to int32 `[E]`; the games would accept any number."""
        array = np.asarray(actions)
        if array.shape != (self.n_envs,) or array.dtype.kind not in "iu":
            raise ValueError(
                f"actions must be {self.n_envs} whole numbers, got {array.dtype} {array.shape}"
            )
        if array.min() < 0 or array.max() >= self.actions:
            raise ValueError(f"actions must lie in 0..{self.actions - 1}, got {array.tolist()}")
        return array.astype(np.int32)


def require_environment(env: Any) -> None:
    """Raise if `env` is not a `VectorEnvironment`; often it is one of Gymnasium's."""
    if not isinstance(env, VectorEnvironment):
        hint = ": wrap it in GymnasiumLevels" if hasattr(env, "single_action_space") else ""
        raise TypeError(f"env must be a VectorEnvironment, got {type(env).__name__}{hint}")
