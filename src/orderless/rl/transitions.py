"""An expert's transitions on one level: collected in a stream, kept in one compressed file.

The file is NumPy's `.npz` with `observations` uint8 `[M, 3, 64, 64]`, `actions` uint8 `[M]` and
`facts.json`, which holds a checksum of both that reading verifies. Its bytes depend on (expert,
level, seed, M, copies) and, as far as their arithmetic differs, on the kind of device.

Actions are sampled from the expert's policy. A transition is what the next-step reset convention
calls valid: the frame that ends an episode has no action and is left out.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..storage import INVALID_STATE
from .environment import Array
from .experts import Expert
from .mixture import MixturePolicy
from .procgen import ProcgenLevels

FRAME = (3, 64, 64)
# What reading one can raise; the last two, since NumPy's headers are Python literals.
DAMAGED_ARCHIVE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError),
    *(SyntaxError, tokenize.TokenError),
)
FORMAT = 1
COPIES = 16  # few enough that 20,000 transitions go beyond one episode of 1,000 steps each


@dataclass(frozen=True)
class Transitions:
    """`observations` uint8 `[M, 3, 64, 64]`, `actions` int64 `[M]`, and where they come from."""

    observations: Tensor
    actions: Tensor
    facts: dict[str, Any]


def transitions_path(folder: Path, expert: Expert, level: int, count: int, seed: int) -> Path:
    """Where a level's transitions lie: a name for everything they depend on."""
    return folder / f"{expert.game}-{expert.digest}-seed{seed}" / f"level{level}-{count}.npz"


def collect(
    path: Path,
    expert: Expert,
    level: int,
    count: int,
    *,
    seed: int = 0,
    n_envs: int = COPIES,
    device: torch.device | str = "cpu",
    tell: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Write `count` transitions of the expert on `level` to `path`; returns their facts.

    Memory is bounded by one step of the copies and the actions. `tell(done)` after every step.
    """
    if count < 1:
        raise ValueError(f"transitions must be at least 1, got {count}")
    env = ProcgenLevels(expert.game, n_envs, level)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    facts = {
        "format": FORMAT,
        "game": expert.game,
        "expert": expert.digest,
        "level": level,
        "seed": seed,
        "transitions": count,
        "copies": n_envs,
    }
    try:
        with open(temporary, "wb") as whole:
            with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                facts.update(_write(archive, expert, env, seed, count, device, tell))
                with archive.open("facts.json", "w") as file:
                    file.write(json.dumps(facts, indent=1).encode())
            whole.flush()
            os.fsync(whole.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        env.close()
    return facts


def _write(
    archive: zipfile.ZipFile,
    expert: Expert,
    env: ProcgenLevels,
    seed: int,
    count: int,
    device: torch.device | str,
    tell: Callable[[int], None],
) -> dict[str, Any]:
    """Frames as they come, the actions behind them; what the episodes brought."""
    chosen: list[Array] = []
    returns: list[float] = []
    digest, done = hashlib.sha256(), 0
    with archive.open("observations.npy", "w", force_zip64=True) as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, *FRAME)}
        np.lib.format.write_array_header_1_0(file, header)
        for frames, actions in _played(expert, env, seed, device, returns):
            frames, actions = frames[: count - done], actions[: count - done]
            data = np.ascontiguousarray(frames).tobytes()
            file.write(data)
            digest.update(data)
            chosen.append(actions.astype(np.uint8))
            done += len(actions)
            tell(done)
            if done == count:
                break
    everything = np.concatenate(chosen)
    digest.update(everything.tobytes())
    with archive.open("actions.npy", "w") as file:
        buffer = io.BytesIO()
        np.save(buffer, everything)
        file.write(buffer.getvalue())
    mean = float(env.normalize(returns).mean()) if returns else None
    return {"sha256": digest.hexdigest(), "episodes": len(returns), "mean_return": mean}


def _played(
    expert: Expert,
    env: ProcgenLevels,
    seed: int,
    device: torch.device | str,
    returns: list[float],
) -> Iterator[tuple[Array, Array]]:
    """(frames, actions) of one step after another; finished episodes are noted in `returns`."""
    policy = MixturePolicy(expert.filter(device), env.n_envs, seed=seed)
    env.reset()
    while True:
        frames, counted = env.observations, ~env.ended
        first = torch.from_numpy(env.first).to(device)
        decision = policy(torch.from_numpy(frames).to(device), first)
        actions = decision.actions.cpu().numpy()
        yield frames[counted], actions[counted]
        info = env.step(actions)[-1]
        returns += info["episode_return"][env.ended].tolist()


def _facts(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The facts, if the parts of the archive have the sizes that they promise."""
    if archive.getinfo("facts.json").file_size > 2**20:
        raise ValueError("its facts are too long")
    facts = json.loads(archive.read("facts.json"))
    if facts["format"] != FORMAT:
        raise ValueError(f"its format is {facts['format']}, not {FORMAT}")
    for name, bytes_each in (("observations.npy", math.prod(FRAME)), ("actions.npy", 1)):
        header = archive.getinfo(name).file_size - facts["transitions"] * bytes_each
        if not 0 < header <= 2**12:
            raise ValueError(f"{name} does not hold {facts['transitions']} transitions")
    if not isinstance(facts["episodes"], int) or not isinstance(facts["mean_return"], float | None):
        raise ValueError("its facts are not those of a collection")
    return facts


def read_transitions(path: Path) -> Transitions:
    """A file of `collect`; one that is not whole is refused with a sentence."""
    try:
        with zipfile.ZipFile(path) as archive:
            facts = _facts(archive)
        with np.load(path, allow_pickle=False) as arrays:
            observations, actions = arrays["observations"], arrays["actions"]
        digest = hashlib.sha256(observations.tobytes())
        digest.update(actions.tobytes())
        if digest.hexdigest() != facts["sha256"]:
            raise ValueError("its checksum is not that of its content")
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}: `orderless expert collect` writes it") from None
    except (*DAMAGED_ARCHIVE, *INVALID_STATE) as error:
        raise ValueError(
            f"{path} is damaged ({error}): delete it, and the same command collects it again"
        ) from None
    if observations.shape != (len(actions), *FRAME) or len(actions) != facts["transitions"]:
        raise ValueError(
            f"{path} holds {len(actions)} actions for observations of shape "
            f"{list(observations.shape)}, not {facts['transitions']} transitions: delete it"
        )
    return Transitions(torch.from_numpy(observations), torch.from_numpy(actions).long(), facts)
