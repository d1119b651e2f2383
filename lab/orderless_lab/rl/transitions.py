"""An expert's transitions on one level: collected as a stream, stored in a folder.

The folder holds `observations.npy` (uint8 `[M, 3, 64, 64]`, each frame once), `actions.npy` (uint8
`[M]`) and `facts.json`, with a checksum of both that reading verifies. Nothing is compressed, so
that the frames can be mapped into memory and may be larger than it. The bytes depend on (expert,
level, seed, M, copies) and, as far as their arithmetic differs, on the kind of device.

Actions are sampled from the expert's policy. Only valid transitions are stored: the frame that ends
an episode has no action and is left out.
"""

import hashlib
import json
import os
import shutil
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orderless.ensemble import find_device
from orderless.io import INVALID_STATE, write_atomically

from .environment import Array
from .experts import Expert, policy_of
from .mixture import MixturePolicy
from .procgen import ProcgenLevels

FRAME = (3, 64, 64)
# Errors of reading a damaged file; the last two because NumPy's headers are Python literals.
DAMAGED = (EOFError, OSError, SyntaxError, tokenize.TokenError)
FORMAT = 2
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
        raise ValueError(f"{path} is there already: delete it, or name another folder")
    n_envs = n_envs or max(COPIES, min(MOST_COPIES, count // STEPS))
    env = ProcgenLevels(expert.game, n_envs, level)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.mkdir(exist_ok=True)
        returns = _write(temporary, expert, env, seed, count, find_device(device), tell)
        facts = {
            "format": FORMAT,
            "game": expert.game,
            "expert": expert.digest,
            "level": level,
            "seed": seed,
            "transitions": count,
            "copies": n_envs,
            "sha256": _checksum(*_arrays(temporary)),
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


def _arrays(folder: Path) -> tuple[Array, Array]:
    """Frames, mapped copy-on-write, and actions."""
    frames = np.load(folder / "observations.npy", mmap_mode="c", allow_pickle=False)
    return frames, np.load(folder / "actions.npy", allow_pickle=False)


def _checksum(frames: Array, actions: Array) -> str:
    checksum = hashlib.sha256(np.ascontiguousarray(frames).data)
    checksum.update(actions.tobytes())
    return checksum.hexdigest()


def read_transitions(path: Path) -> Transitions:
    """Read a folder of `collect`, with frames mapped copy-on-write; raise if it is damaged."""
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}: `orderless expert collect` writes it")
    try:
        facts = json.loads((path / "facts.json").read_bytes())
        if facts["format"] != FORMAT:
            raise ValueError(f"its format is {facts['format']}, not {FORMAT}")
        frames, actions = _arrays(path)
        if _checksum(frames, actions) != facts["sha256"]:
            raise ValueError("its checksum is not that of its content")
        count = facts["transitions"]
        if (frames.shape, actions.shape) != ((count, *FRAME), (count,)):
            raise ValueError(f"{frames.shape} and {actions.shape} are not {count} transitions")
        if not frames.dtype == actions.dtype == np.uint8:
            raise ValueError(f"its arrays are {frames.dtype} and {actions.dtype}, not uint8")
        if not isinstance(facts["mean_return"], float | None):
            raise ValueError(f"its mean return is {facts['mean_return']!r}")
    except (*DAMAGED, *INVALID_STATE) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to collect again") from None
    return Transitions(torch.from_numpy(frames), torch.from_numpy(actions).long(), facts)
