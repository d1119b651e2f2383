"""Levels of one game as tasks, for PPO or for behaviour cloning."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from orderless.io import user_cache

from .experts import Expert
from .procgen import ProcgenLevels
from .transitions import Transitions, collect, read_transitions, transitions_path


@dataclass(frozen=True)
class ProcgenTasks:
    """Task k is level `levels[k]` of `game`."""

    game: str
    levels: tuple[int, ...]
    device: torch.device

    def __len__(self) -> int:
        return len(self.levels)

    @property
    def task_names(self) -> list[str]:
        return [f"level {level}" for level in self.levels]

    def environment(self, n_envs: int) -> ProcgenLevels:
        return ProcgenLevels(self.game, n_envs, self.levels[0])


@dataclass(frozen=True)
class ClonedTasks(ProcgenTasks):
    """Levels with `count` transitions of an expert each, stored in `folder`."""

    expert: Expert
    folder: Path
    count: int
    seed: int = 0

    def transitions(self, task: int) -> Transitions:
        """The transitions of one task, read from its folder; collected first if it is missing."""
        path = self._path(task)
        if not path.exists():
            level = self.levels[task]
            collect(path, self.expert, level, self.count, seed=self.seed, device=self.device)
        # a file that has changed is read again: its memory map would be of another content
        frames = path / "observations.npy"
        return _read(path, frames.stat().st_mtime_ns if frames.exists() else 0)

    def prepare(self, say: Callable[[str], None]) -> None:
        """Collect the missing transitions, with a message for each level."""
        for task, level in enumerate(self.levels):
            if not (path := self._path(task)).exists():
                say(f"collecting {self.count} transitions of {self.game} level {level} to {path}")
                self.transitions(task)

    def _path(self, task: int) -> Path:
        return transitions_path(self.folder, self.expert, self.levels[task], self.count, self.seed)


@lru_cache(maxsize=3)  # the levels of preset `gpu`, which all methods and orders read
def _read(path: Path, changed: int) -> Transitions:
    return read_transitions(path)


def transitions_folder(root: str | Path | None = None) -> Path:
    """The folder of collected transitions: in `root`, or in the user's cache."""
    return Path(root or user_cache()).expanduser() / "procgen"
