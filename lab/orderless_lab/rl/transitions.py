"""An expert's transitions on one level: collected as a stream, stored in a folder.

The folder holds `observations.npy` (uint8 `[M, 3, 64, 64]`, each frame once), `actions.npy` (uint8
`[M]`) and `facts.json`, with a checksum of both files, which reading verifies. Nothing is
compressed, so that the frames can be mapped into memory and may be larger than it. The bytes depend
on (expert, level, seed, M, copies) and, as far as their arithmetic differs, on the kind of device.

Actions are sampled from the expert's policy. Only valid transitions are stored: the frame that ends
an episode has no action and is left out.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orderless.ensemble import find_device
from orderless.errors import UserError
from orderless.io import write_atomically

from .experts import Expert, policy_of
from .mixture import MixturePolicy
from .procgen import ProcgenLevels

FRAME = (3, 64, 64)
# 16 to 256 copies; within that each makes 1,250 steps, more than an episode of at most 1,000.
COPIES = 16
MOST_COPIES = 256
STEPS = 1250


@dataclass(frozen=True)
class Transitions:
    """`observations` uint8 `[M, 3, 64, 64]`, `actions` int64 `[M]`, and their `facts`.

    The facts are the content of `facts.json`: what the bytes depend on, and `episodes` with their
    `mean_return` (normalised; None if no episode ended).
    """

    observations: Tensor
    actions: Tensor
    facts: dict[str, Any]


def transitions_path(folder: Path, expert: Expert, level: int, count: int, seed: int) -> Path:
    """The folder of a level's transitions, named after everything they depend on."""
    return folder / f"{expert.game}-{expert.digest}-seed{seed}" / f"level{level}-{count}"


def collect(
    path: Path,
    expert: Expert,
    level: int,
    count: int,
    *,
    seed: int = 0,
    n_envs: int | None = None,
    device: torch.device | str = "cpu",
    tell: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Write `count` transitions of the expert on `level` to the folder `path`; returns their facts.

    `n_envs` copies of the game play (by default more for a larger `count`). Frames are written
    where they are mapped, so they may be larger than memory. `tell(done)` is called after every
    step.
    """
    if count < 1:
        raise ValueError(f"transitions must be at least 1, got {count}")
    if path.exists():
        raise UserError(f"{path} is there already: delete it, or name another folder")
    n_envs = n_envs or max(COPIES, min(MOST_COPIES, count // STEPS))
    env = ProcgenLevels(expert.game, n_envs, level)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        returns = _write(temporary, expert, env, seed, count, find_device(device), tell)
        facts = {
            "game": expert.game,
            "expert": expert.digest,
            "level": level,
            "seed": seed,
            "transitions": count,
            "copies": n_envs,
            "sha256": _checksum(temporary),
            "episodes": len(returns),
            "mean_return": float(env.normalize(returns).mean()) if returns else None,
        }
        write_atomically(temporary / "facts.json", json.dumps(facts, indent=1).encode())
        try:
            os.replace(temporary, path)
        except OSError:
            if not path.is_dir():  # unless another process has collected the same data first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        env.close()
    return facts


def _write(
    folder: Path,
    expert: Expert,
    env: ProcgenLevels,
    seed: int,
    count: int,
    device: torch.device,
    tell: Callable[[int], None],
) -> list[float]:
    """Write frames and actions; return the episodes' returns."""
    shape = count, *FRAME
    frames = np.lib.format.open_memmap(folder / "observations.npy", "w+", np.uint8, shape)
    actions = np.lib.format.open_memmap(folder / "actions.npy", "w+", np.uint8, (count,))
    filter = policy_of(expert.network, device)
    policy = MixturePolicy(filter, env.n_envs, env.actions, seed=seed)
    returns: list[float] = []
    done = 0
    env.reset()
    while done < count:
        playing = np.flatnonzero(~env.ended)[: count - done]
        chosen = policy(env.observations, env.first).actions.cpu().numpy()
        rows = slice(done, done + len(playing))
        frames[rows] = env.observations[playing]
        actions[rows] = chosen[playing]
        done += len(playing)
        tell(done)
        if done < count:
            info = env.step(chosen)[-1]
            returns += info["episode_return"][env.ended].tolist()
    frames.flush()
    actions.flush()
    return returns


def _checksum(folder: Path) -> str:
    """The sha256 of both files, one after the other."""
    checksum = hashlib.sha256()
    for name in ("observations.npy", "actions.npy"):
        with (folder / name).open("rb") as file:
            hashlib.file_digest(file, lambda: checksum)
    return checksum.hexdigest()


def read_transitions(path: Path) -> Transitions:
    """Read a folder of `collect`, with frames mapped copy-on-write; raise if it is damaged."""
    if not path.is_dir():
        raise UserError(f"there is no folder {path}: `orderless expert collect` writes it")
    try:
        facts = json.loads((path / "facts.json").read_bytes())
        intact = facts["sha256"] == _checksum(path)
    except (OSError, ValueError, KeyError):
        intact = False
    if not intact:
        raise UserError(f"{path} is damaged: delete it to collect again")
    frames = np.load(path / "observations.npy", mmap_mode="c")
    actions = np.load(path / "actions.npy")
    return Transitions(torch.from_numpy(frames), torch.from_numpy(actions).long(), facts)
