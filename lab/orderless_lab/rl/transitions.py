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
import math
import os
import shutil
import tokenize
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypedDict

import numpy as np
import torch
from torch import Tensor

from orderless.ensemble import find_device
from orderless.io import INVALID_STATE, write_atomically

from .environment import Array, with_rows
from .experts import Expert
from .mixture import MixturePolicy
from .procgen import ProcgenLevels
from .staging import Staging

FRAME = (3, 64, 64)
# Errors of reading a damaged file; the last two because NumPy's headers are Python literals.
DAMAGED = (EOFError, OSError, SyntaxError, tokenize.TokenError)
FORMAT = 2
# 16 to 256 copies; within that each makes 1,250 steps, more than an episode of at most 1,000.
COPIES, MOST_COPIES, STEPS = 16, 256, 1250
AHEAD = 16  # steps of the game that may wait to be written


class Facts(TypedDict):
    """The content of `facts.json`: what the folder's bytes depend on, and the episodes' returns."""

    format: int
    game: str
    expert: str
    level: int
    seed: int
    transitions: int
    copies: int
    sha256: str
    episodes: int
    mean_return: float | None


@dataclass(frozen=True)
class Transitions:
    """`observations` uint8 `[M, 3, 64, 64]`, `actions` int64 `[M]`, and their `facts`."""

    observations: Tensor
    actions: Tensor
    facts: Facts


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
) -> Facts:
    """Write `count` transitions of the expert on `level` to the folder `path`; returns their facts.

    `n_envs` copies of the game play (by default more for a larger `count`). Memory holds a few
    steps of the copies and all actions. `tell(done)` is called after every step.
    """
    if count < 1:
        raise ValueError(f"transitions must be at least 1, got {count}")
    if path.exists():
        raise ValueError(f"{path} is there already: delete it, or name another folder")
    n_envs = n_envs or max(COPIES, min(MOST_COPIES, count // STEPS))
    halves = [(n_envs + 1) // 2, n_envs // 2] if n_envs > 1 else [n_envs]
    envs = [ProcgenLevels(expert.game, copies, level) for copies in halves]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.mkdir(exist_ok=True)
        digest, returns = _write(temporary, expert, envs, seed, count, find_device(device), tell)
        facts = Facts(
            format=FORMAT,
            game=expert.game,
            expert=expert.digest,
            level=level,
            seed=seed,
            transitions=count,
            copies=n_envs,
            sha256=digest,
            episodes=len(returns),
            mean_return=float(envs[0].normalize(returns).mean()) if returns else None,
        )
        write_atomically(temporary / "facts.json", json.dumps(facts, indent=1).encode())
        try:
            os.replace(temporary, path)
        except OSError:
            if not path.is_dir():  # unless another process has collected the same data first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for env in envs:
            env.close()
    return facts


@contextmanager
def _synced(path: Path) -> Iterator[IO[bytes]]:
    """A new file that is synced to disk when the block ends."""
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write(
    folder: Path,
    expert: Expert,
    envs: list[ProcgenLevels],
    seed: int,
    count: int,
    device: torch.device,
    tell: Callable[[int], None],
) -> tuple[str, list[float]]:
    """Write frames and actions; return their checksum and the episodes' returns."""
    chosen: list[Array] = []
    returns: list[float] = []
    digest, done = hashlib.sha256(), 0
    waiting: deque[Future[None]] = deque()
    with _synced(folder / "observations.npy") as file, ThreadPoolExecutor(1) as writer:

        def write(frames: Array) -> None:
            data = np.ascontiguousarray(frames).data
            file.write(data)
            digest.update(data)

        header = {"descr": "|u1", "fortran_order": False, "shape": (count, *FRAME)}
        np.lib.format.write_array_header_1_0(file, header)
        for frames, actions in _played(expert, envs, seed, device, returns):
            frames, actions = frames[: count - done], actions[: count - done]
            waiting.append(writer.submit(write, frames))  # in a thread, while the game steps
            if len(waiting) > AHEAD:
                waiting.popleft().result()
            chosen.append(actions.astype(np.uint8))
            done += len(actions)
            tell(done)
            if done == count:
                break
        for written in waiting:
            written.result()
    everything = np.concatenate(chosen)
    digest.update(everything.tobytes())
    with _synced(folder / "actions.npy") as file:
        np.save(file, everything)
    return digest.hexdigest(), returns


def _played(
    expert: Expert, envs: list[ProcgenLevels], seed: int, device: torch.device, returns: list[float]
) -> Iterator[tuple[Array, Array]]:
    """(frames, actions) step by step, the environments in turns; adds episodes to `returns`."""
    copies = sum(env.n_envs for env in envs)
    policy = MixturePolicy(expert.filter(device), copies, seed=seed)
    staging = Staging(copies, device)
    for each in envs:
        each.reset()
    while True:
        seen, done = [], []
        for env, rows in with_rows(envs):
            if env.under_way:
                info = env.recv()[-1]
                returns += info["episode_return"][env.ended].tolist()
            frames, counted = env.observations, ~env.ended
            decision = policy(staging.frames(frames, rows), torch.from_numpy(env.first), rows)
            actions = staging.fetch(decision.actions, rows)()
            env.send(actions)
            seen.append(frames[counted])
            done.append(actions[counted])
        yield np.concatenate(seen), np.concatenate(done)


def _facts(folder: Path) -> Facts:
    """Read the facts and check that the other files have the right sizes."""
    file = folder / "facts.json"
    if file.stat().st_size > 2**20:
        raise ValueError("its facts are too long")
    facts: Facts = json.loads(file.read_bytes())
    if facts["format"] != FORMAT:
        raise ValueError(f"its format is {facts['format']}, not {FORMAT}")
    for name, bytes_each in (("observations.npy", math.prod(FRAME)), ("actions.npy", 1)):
        header = (folder / name).stat().st_size - facts["transitions"] * bytes_each
        if not 0 < header <= 2**12:
            raise ValueError(f"{name} does not hold {facts['transitions']} transitions")
    if not isinstance(facts["episodes"], int) or not isinstance(facts["mean_return"], float | None):
        raise ValueError("its facts are not those of a collection")
    return facts


def read_transitions(path: Path) -> Transitions:
    """Read a folder of `collect`, with frames mapped copy-on-write; raise if it is damaged."""
    if path.suffix == ".npz" and path.is_file():
        raise ValueError(
            f"{path} holds compressed transitions of an earlier version: delete it to collect again"
        )
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}: `orderless expert collect` writes it")
    try:
        facts = _facts(path)
        observations = np.load(path / "observations.npy", mmap_mode="c", allow_pickle=False)
        actions = np.load(path / "actions.npy", allow_pickle=False)
        digest = hashlib.sha256(np.ascontiguousarray(observations).data)
        digest.update(actions.tobytes())
        if digest.hexdigest() != facts["sha256"]:
            raise ValueError("its checksum is not that of its content")
        shapes, count = [observations.shape, actions.shape], facts["transitions"]
        kinds = {observations.dtype, actions.dtype}
        if shapes != [(count, *FRAME), (count,)] or kinds != {np.dtype(np.uint8)}:
            raise ValueError(f"{shapes} of {kinds} are not {count} transitions")
    except (*DAMAGED, *INVALID_STATE) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to collect again") from None
    return Transitions(torch.from_numpy(observations), torch.from_numpy(actions).long(), facts)
