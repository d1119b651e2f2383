"""A run directory: records of finished cells, checkpoints of unfinished ones, snapshots.

DIR/cells/NAME.json          one finished cell each, with a checksum
DIR/checkpoints/NAME.K.st    the last two checkpoints of a cell that is being computed
DIR/snapshots/NAME.st        particle positions over training, for the density figure
DIR/locks/NAME               held by the process that computes the cell

Several runs may write to one directory: each cell is computed by the run that holds its lock.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from orderless import __version__
from orderless.errors import UserError
from orderless.io import load, save, write_atomically

try:
    import fcntl
except ImportError:  # not on Windows, where nothing keeps two runs from computing one cell twice
    fcntl = None  # type: ignore[assignment]

Json = Any  # what the module `json` reads and writes

FORMAT = 2
LARGEST_CELL = 2**28  # bytes; one with a million predictions has two million
FOLDERS = ("cells", "checkpoints", "snapshots", "locks")
MARK = ".mark"


class StoreError(UserError):
    """A problem with a run directory, described in one sentence."""


class DamagedFile(UserWarning):
    """A file is damaged; there is one warning per file."""

    numbers_tell_apart = True


def versions() -> dict[str, str]:
    """Versions of the packages that results depend on, for the records."""
    return {"orderless": __version__, "torch": torch.__version__, "numpy": np.__version__}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else os.uname().machine


def as_json(value: object) -> Json:
    """Plain JSON; a number that is not finite becomes null."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"a {type(value).__name__} has no place in JSON")


def _digest(cell: Json) -> str:
    text = json.dumps(cell, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_cell(path: Path) -> dict[str, Json]:
    """Read a finished cell; raise `ValueError` if the file is damaged."""
    try:
        if not path.is_file():  # reading a FIFO or a device might never end
            raise ValueError("it is no file")
        with path.open("rb") as file:
            content = file.read(LARGEST_CELL + 1)
        if len(content) > LARGEST_CELL:
            raise ValueError("it is larger than any cell")
        wrapper = json.loads(content.decode())
        cell = wrapper["cell"]
        if wrapper["format"] != FORMAT:
            raise ValueError(f"its format is {wrapper['format']!r}, not {FORMAT}")
        if wrapper["checksum"] != _digest(cell):
            raise ValueError("its checksum does not match")
        if not isinstance(cell, dict):
            raise ValueError("it holds no record")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run again") from None
    return cell


def set_aside(path: Path) -> None:
    """Rename a damaged file, so that its cell is computed again."""
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    text = f"{path} was damaged: it is now {aside}, and computed again"
    warnings.warn(text, DamagedFile, stacklevel=3)


class Store:
    """Reads and writes one run directory."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._newest: dict[str, Path] = {}  # checkpoint of each cell

    def prepare(self) -> None:
        """Create the directory and check that it is writable."""
        try:
            for name in FOLDERS:
                (self.directory / name).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise StoreError(f"cannot write to {self.directory}: {error.strerror}") from None

    def mark(self) -> str:
        """The directory's identifier: who reads the same one sees the same directory."""
        path = self.directory / MARK
        if not path.exists():
            with self.space():
                write_atomically(path, secrets.token_hex(16).encode())
        return path.read_text()

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Lock a cell while it is computed; False if another process computes it.

        The lock ends with the process. What a killed process left of the cell is removed.
        """
        path = self.directory / "locks" / name
        with self.space():
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        with os.fdopen(descriptor, "r+") as file:
            ours = self._lock(file.fileno())
            if ours:
                for part in self.directory.glob(f"*/.{escape(name)}.*.part"):
                    part.unlink(missing_ok=True)
            yield ours
        if ours and self.cell_path(name).exists():
            path.unlink(missing_ok=True)

    def _lock(self, descriptor: int) -> bool:
        if fcntl is None:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:  # such as some network file systems
            warnings.warn(
                f"{self.directory} cannot be locked ({error.strerror}): let one run at a time "
                "write to it",
                stacklevel=3,
            )
        return True

    # ---------------------------------------------------------------------- finished cells

    def cell_path(self, name: str) -> Path:
        return self.directory / "cells" / f"{name}.json"

    def snapshots_path(self, name: str) -> Path:
        return self.directory / "snapshots" / f"{name}.st"

    def _readers(self, name: str) -> dict[Path, Callable[[Path], Any]]:
        """The files of a finished cell, its record first, each with its reader."""
        return {self.cell_path(name): read_cell, self.snapshots_path(name): load}

    def finished(self) -> dict[str, dict[str, Json]]:
        """All finished cells by name, except those with a damaged file; changes nothing."""
        records = {}
        for path in sorted((self.directory / "cells").glob("*.json")):
            with suppress(ValueError):
                files = self._readers(path.stem).items()
                record, *_ = [read(file) for file, read in files if file.exists()]
                records[path.stem] = record
        return records

    def tidy(self, name: str, *, finished: bool) -> None:
        """Set aside damaged files of an unfinished cell; drop the checkpoints of a finished one."""
        if finished:
            self.drop_checkpoints(name)
            return
        for path, read in self._readers(name).items():
            try:
                if path.exists():
                    read(path)
            except ValueError:
                set_aside(path)
                self.cell_path(name).unlink(missing_ok=True)  # no record without its snapshots

    def write_cell(self, name: str, record: object) -> None:
        """Write the record of a finished cell, and delete its checkpoints."""
        cell = as_json(record)
        wrapper = {"format": FORMAT, "checksum": _digest(cell), "cell": cell}
        text = json.dumps(wrapper, indent=1, allow_nan=False)
        with self.space():
            write_atomically(self.cell_path(name), text.encode())
        self.drop_checkpoints(name)

    def write_snapshots(self, name: str, snapshots: dict[str, Tensor]) -> None:
        with self.space():
            save(self.snapshots_path(name), snapshots)

    # ---------------------------------------------------------------------- checkpoints

    def _checkpoints(self, name: str) -> list[Path]:
        return [self.directory / "checkpoints" / f"{name}.{k}.st" for k in (0, 1)]

    def drop_checkpoints(self, name: str) -> None:
        for path in self._checkpoints(name):
            path.unlink(missing_ok=True)

    def save_checkpoint(self, name: str, state: dict[str, object]) -> None:
        """Overwrite the older checkpoint, or one that `load_checkpoint` did not accept."""
        (path, *_) = (p for p in self._checkpoints(name) if p != self._newest.get(name))
        with self.space():
            save(path, state)
        self._newest[name] = path

    def load_checkpoint(self, name: str, progress: Callable[[Any], tuple[int, ...] | None]) -> Any:
        """The state with the most progress, or None; damaged files are renamed.

        `progress(state)` orders the states (clocks may be wrong); None if one is not usable.
        """
        self._newest.pop(name, None)
        best = None
        furthest = None
        for path in filter(Path.exists, self._checkpoints(name)):
            state = None
            with suppress(ValueError):
                state = load(path)
            if not isinstance(state, dict):
                set_aside(path)
                continue
            come = progress(state)
            if come is not None and (furthest is None or come > furthest):
                best = state
                furthest = come
                self._newest[name] = path
        return best

    @contextmanager
    def space(self) -> Iterator[None]:
        """Report a failed write, for example to a full disk, as a `StoreError`."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(
                f"cannot write to {self.directory}: {reason}; finished cells are safe, and the "
                "same command resumes"
            ) from None
