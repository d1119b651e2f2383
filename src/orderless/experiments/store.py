"""A run directory: finished cells, checkpoints of unfinished ones, and nothing half written.

DIR/cells/NAME.json          one finished cell each, with a checksum
DIR/checkpoints/NAME.K.st    the last two states of a cell that is being computed
DIR/snapshots/NAME.st        particle positions over training, for the density figure
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..storage import saving as storage
from ..storage.typed import Json, as_json
from ..version import __version__

if TYPE_CHECKING:
    from .record import CellRecord

FORMAT = 1
LOCK = ".lock"
LARGEST_CELL = 2**28  # bytes; one with a million predictions has two million


class StoreError(Exception):
    """Something about a run directory, in one sentence."""


class DamagedFile(UserWarning):
    """A file that is not what was written; each is named, however many there are."""


def _digest(cell: Json) -> str:
    text = json.dumps(cell, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_cell(path: Path) -> dict[str, Any]:
    """A finished cell; a file that is not what was written raises `ValueError`."""
    try:
        if not path.is_file():  # a FIFO or a device could be read for ever
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


def _set_aside(path: Path) -> None:
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    text = f"{path} was damaged: it is now {aside}, and computed again"
    warnings.warn(text, DamagedFile, stacklevel=3)


class Store:
    """Reads and writes one run directory; of several ranks together, see `ranks.SharedStore`."""

    group: Any = None  # the processes that compute a cell together
    first: bool = True  # whether this is the one of them that writes

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def agrees(self, now: bool) -> bool:
        """Whether it is time for a checkpoint: for all ranks when it is for the one that writes."""
        return now

    def prepare(self, *folders: str) -> None:
        """Make the directory with these folders (all by default), and see that it is writable."""
        try:
            for name in folders or ("cells", "checkpoints", "snapshots"):
                (self.directory / name).mkdir(parents=True, exist_ok=True)
            probe = self.directory / ".writable"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise StoreError(f"cannot write to {self.directory}: {error.strerror}") from None

    @contextmanager
    def lock(self) -> Iterator[str]:
        """One run at a time; the lock goes with the process, however it ends.

        Gives the directory's own mark: who reads the same mark there sees the same directory.
        """
        with open(self.directory / LOCK, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(
                    f"another run is writing to {self.directory}: wait for it or choose another "
                    "--out"
                ) from None
            for part in self.directory.glob("*/.*.part"):  # of a run that was killed
                part.unlink(missing_ok=True)
            file.seek(0)
            mark = file.read()
            if not re.fullmatch("[0-9a-f]{32}", mark):
                mark = secrets.token_hex(16)
                with self._space():
                    file.truncate(0)
                    file.write(mark)
                    file.flush()
            yield mark

    # ------------------------------------------------------------------ cells

    def cell_path(self, name: str) -> Path:
        return self.directory / "cells" / f"{name}.json"

    def snapshots_path(self, name: str) -> Path:
        return self.directory / "snapshots" / f"{name}.st"

    def finished(self) -> dict[str, dict[str, Any]]:
        """All finished cells by name, without those of which a file is damaged. Changes nothing."""
        records = {}
        for path in sorted((self.directory / "cells").glob("*.json")):
            with suppress(ValueError):
                record, snapshots = read_cell(path), self.snapshots_path(path.stem)
                if snapshots.exists():
                    storage.load(snapshots)
                records[path.stem] = record
        return records

    def set_aside(self, name: str) -> None:
        """Move away what cannot be read of a cell, so that it is computed again."""
        readers = {self.cell_path(name): read_cell, self.snapshots_path(name): storage.load}
        for path, read in readers.items():
            try:
                if path.exists():
                    read(path)
            except ValueError:
                _set_aside(path)

    def write_cell(self, name: str, record: CellRecord | dict[str, Json]) -> None:
        """A finished cell, or what an audit or a map keep in its place."""
        cell = as_json(record)
        wrapper = {"format": FORMAT, "checksum": _digest(cell), "cell": cell}
        text = json.dumps(wrapper, indent=1, allow_nan=False)
        with self._space():
            storage.write_atomically(self.cell_path(name), text.encode())
        self.drop_checkpoints(name)

    def drop_checkpoints(self, name: str) -> None:
        """Also what a process that was killed left half written of them."""
        folder = self.directory / "checkpoints"
        for path in [*self._checkpoints(name), *folder.glob(f".{escape(name)}.?.st.*.part")]:
            path.unlink(missing_ok=True)

    def write_snapshots(self, name: str, snapshots: dict[str, Tensor]) -> None:
        with self._space():
            storage.save(self.snapshots_path(name), snapshots)

    # ------------------------------------------------------------------ checkpoints

    def _checkpoints(self, name: str) -> list[Path]:
        folder = self.directory / "checkpoints"
        return [folder / f"{name}.{k}.st" for k in (0, 1)]

    def save_checkpoint(self, name: str, state: dict[str, Any]) -> None:
        """Write over the older of the two."""
        paths = self._checkpoints(name)
        oldest = min(paths, key=lambda p: p.stat().st_mtime_ns if p.exists() else 0)
        with self._space():
            storage.save(oldest, state)

    def load_checkpoint(self, name: str) -> dict[str, Any] | None:
        """The newer state that can be read; a damaged one is set aside."""
        present = [path for path in self._checkpoints(name) if path.exists()]
        for path in sorted(present, key=lambda p: p.stat().st_mtime_ns, reverse=True):
            with suppress(ValueError):
                state = storage.load(path)
                if isinstance(state, dict):
                    return state
            _set_aside(path)
        return None

    @contextmanager
    def _space(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(
                f"cannot write to {self.directory}: {reason}; finished cells are safe, and the "
                "same command goes on from here"
            ) from None


def versions() -> dict[str, str]:
    return {"orderless": __version__, "torch": torch.__version__, "numpy": np.__version__}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else os.uname().machine
