"""ProcGen's games, one level at a time, through envpool.

ProcGen (Cobbe et al. 2020) generates levels from numbers: level k of a game is always the same, and
on one fixed level an episode repeats exactly under equal actions. The distribution mode is hard.
Rewards and episode ends equal those of the package procgen 0.10.7, step for step.
"""

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from .environment import Array, Saved, VectorEnvironment
from .games import LEVELS_END, RETURN_RANGES, checked_level, known_game
from .networks import ACTIONS
from .runtime import load_envpool

EPISODE_LIMIT = 1000  # the games' own


def normalized_return(game: str, returns: ArrayLike) -> Array:
    """(R - R_min) / (R_max - R_min) of a game in hard mode; below 0 for less than R_min."""
    low, high = RETURN_RANGES[known_game(game)]
    return (np.asarray(returns, dtype=np.float64) - low) / (high - low)


class ProcgenLevels(VectorEnvironment):
    """E copies of one game on level `level`, or on `num_levels` levels from there on.

    Observations are uint8 `[E, 3, 64, 64]`; there are 15 actions. `switch(level)` closes the old
    copies and opens new ones. An episode of 1000 steps is truncated, not terminated.

    Args:
        game: `"starpilot"`, `"fruitbot"` or `"dodgeball"`.
        n_envs: E, the number of copies stepped together.
        level: the level's number, or the first of several.
        num_levels: the number of levels from which episodes are drawn, by `seed`.
        seed: determines the order of levels when there are several; unused with one.
        threads: the number of threads that step the copies (default: one for every core).

    `state_dict` holds the actions of the running episodes, and `load_state_dict` replays them: on
    one level everything continues exactly. On several levels a resumed environment starts new
    episodes, drawn from another seed.
    """

    def __init__(
        self,
        game: str,
        n_envs: int,
        level: int = 0,
        *,
        num_levels: int = 1,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        super().__init__(n_envs, ACTIONS)
        self.game = known_game(game)
        self.num_levels = num_levels
        self.level = checked_level(level, num_levels)
        self.seed = seed
        # envpool shares the cores with torch: more threads than copies would only wait
        self.threads = min(n_envs, threads or os.cpu_count() or 1)
        self.resumes = 0
        self._envpool = load_envpool()
        self._history = np.zeros((n_envs, EPISODE_LIMIT), dtype=np.int8)
        self._pool: Any = None
        self._pending = False  # whether the pool computes a step that nobody has received

    def _open(self) -> None:
        """Open a new pool and release the old one's threads and memory."""
        self.close()
        self._pool = self._envpool.make_gymnasium(
            f"{self.game.capitalize()}Hard-v0",
            num_envs=self.n_envs,
            num_threads=self.threads,
            start_level=self.level,
            num_levels=self.num_levels,
            max_episode_steps=EPISODE_LIMIT,
            seed=(self.seed + 1_000_003 * self.resumes) % LEVELS_END,
        )
        self._owner = os.getpid()

    def close(self) -> None:
        """Release the copies; `reset` or `switch` opens new ones."""
        if self._pool is not None:
            if self._pending and self._owner == os.getpid():
                self._pool.recv()
            self._pool.close()
        self._pool = None
        self._pending = False
        self.started = False

    def switch(self, level: int) -> tuple[Array, dict[str, Array]]:
        """Close this level, open another and start there: `(observations, info)`."""
        self._check_process()
        level = checked_level(level, self.num_levels)
        self.close()
        self.level = level
        return self.reset()

    def _check_process(self) -> None:
        if self._pool is not None and self._owner != os.getpid():
            raise RuntimeError(
                "these ProcGen copies belong to another process and would hang in a forked child: "
                "start children with the 'spawn' method and make the environment there"
            )

    def _start(self) -> Array:
        if self._pool is None or self._pending:
            self._open()
        self._check_process()
        observations, _ = self._pool.reset()
        return observations

    def _step(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        self._check_process()
        playing = np.flatnonzero(~self.ended)
        self._history[playing, self.lengths[playing]] = actions[playing]
        self._pool.send(actions)
        self._pending = True
        observations, rewards, terminated, truncated, _ = self._pool.recv()
        self._pending = False
        return observations, rewards.astype(np.float64), terminated, truncated

    def normalize(self, returns: ArrayLike) -> Array:
        """Returns of this game as `(R - R_min) / (R_max - R_min)`."""
        return normalized_return(self.game, returns)

    def state_dict(self) -> dict[str, object]:
        longest = int(self.lengths.max())
        return {
            "game": self.game,
            "n_envs": self.n_envs,
            "level": self.level,
            "num_levels": self.num_levels,
            "resumes": self.resumes,
            "lengths": torch.from_numpy(self.lengths.copy()),
            "actions": torch.from_numpy(self._history[:, :longest].copy()),
        }

    def load_state_dict(self, state: Saved) -> None:
        """Open the saved level and, if there is only one, replay the running episodes."""
        there = [state[name] for name in ("game", "n_envs", "num_levels")]
        here = [self.game, self.n_envs, self.num_levels]
        if there != here:
            raise ValueError(f"this state is of game, copies, levels {there}, not of {here}")
        history = state["actions"].numpy()
        lengths = state["lengths"].numpy()
        several = self.num_levels > 1
        self.resumes = int(state["resumes"]) + several
        self.switch(state["level"])
        if not several:
            self._replay(history, lengths)

    def _replay(self, history: Array, lengths: Array) -> None:
        """Play each copy's own actions from its first frame; finished copies wait."""
        self._history[:, : history.shape[1]] = history
        self.observations = self.observations.copy()
        for place in range(history.shape[1]):
            playing = np.flatnonzero(lengths > place).astype(np.int32)
            actions = history[playing, place].astype(np.int32)
            frames, rewards, terminated, truncated, info = self._pool.step(actions, playing)
            copies = info["env_id"]
            self.observations[copies] = frames
            self.returns[copies] += rewards
            self.ended[copies] = terminated | truncated
        self.lengths = lengths.copy()
        self.first = lengths == 0
