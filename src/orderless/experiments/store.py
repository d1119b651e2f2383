"""A run directory: finished cells, checkpoints of unfinished ones, and nothing half written.

DIR/cells/NAME.json          one finished cell each, with a checksum
DIR/checkpoints/NAME.K.st    the last two states of a cell that is being computed
DIR/snapshots/NAME.npz       particle positions over training, for the density figure
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .. import storage

FORMAT = 1


class StoreError(Exception):
    """Something about a run directory, in one sentence."""


def _digest(cell: dict[str, Any]) -> str:
    text = json.dumps(cell, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _fingerprint(state: Any) -> int:
    """Of every value and tensor: safetensors itself does not notice a flipped bit."""

    def checked(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return zlib.crc32(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)

    return zlib.crc32(json.dumps(tree_map(checked, state)).encode())


def read_cell(path: Path) -> dict[str, Any]:
    """A finished cell; a file that is not what was written raises `ValueError`."""
    try:
        wrapper = json.loads(path.read_text())
        cell = wrapper["cell"]
        if wrapper["format"] != FORMAT or wrapper["checksum"] != _digest(cell):
            raise ValueError("its checksum does not match")
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run again") from None
    return cell


class Store:
    """Reads and writes one run directory."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def prepare(self) -> None:
        try:
            for name in ("cells", "checkpoints", "snapshots"):
                (self.directory / name).mkdir(parents=True, exist_ok=True)
            probe = self.directory / ".writable"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise StoreError(f"cannot write to {self.directory}: {error.strerror}") from None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One run at a time; the lock goes with the process, however it ends."""
        with open(self.directory / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(
                    f"another run is writing to {self.directory}: wait for it or choose another "
                    "--out"
                ) from None
            for part in self.directory.glob("*/.*.part"):  # of a run that was killed
                part.unlink(missing_ok=True)
            yield

    # ------------------------------------------------------------------ cells

    def cell_path(self, name: str) -> Path:
        return self.directory / "cells" / f"{name}.json"

    def finished(self) -> dict[str, dict[str, Any]]:
        """All finished cells by name, without the damaged ones. Changes nothing."""
        records = {}
        for path in sorted((self.directory / "cells").glob("*.json")):
            with suppress(ValueError):
                records[path.stem] = read_cell(path)
        return records

    def set_aside(self, name: str) -> None:
        """Move away a cell that cannot be read, so that it is computed again."""
        path = self.cell_path(name)
        if path.exists():
            aside = path.with_suffix(".damaged")
            path.replace(aside)
            warnings.warn(
                f"{path} was damaged: it is now {aside}, and computed again", stacklevel=2
            )

    def write_cell(self, name: str, cell: dict[str, Any]) -> None:
        wrapper = {"format": FORMAT, "checksum": _digest(cell), "cell": cell}
        self._write(self.cell_path(name), json.dumps(wrapper, indent=1, allow_nan=False).encode())
        self.drop_checkpoints(name)

    def drop_checkpoints(self, name: str) -> None:
        for path in self._checkpoints(name):
            path.unlink(missing_ok=True)

    def write_snapshots(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        self._write(self.directory / "snapshots" / f"{name}.npz", buffer.getvalue())

    # ------------------------------------------------------------------ checkpoints

    def _checkpoints(self, name: str) -> list[Path]:
        folder = self.directory / "checkpoints"
        return [folder / f"{name}.{k}.st" for k in (0, 1)]

    def save_checkpoint(self, name: str, state: dict[str, Any]) -> None:
        """Write over the older of the two."""
        paths = self._checkpoints(name)
        oldest = min(paths, key=lambda p: p.stat().st_mtime_ns if p.exists() else 0)
        with self._space():
            storage.save(oldest, {"fingerprint": _fingerprint(state), "state": state})

    def load_checkpoint(self, name: str) -> dict[str, Any] | None:
        """The newer state that can be read; a damaged one is passed over."""
        present = [path for path in self._checkpoints(name) if path.exists()]
        for path in sorted(present, key=lambda p: p.stat().st_mtime_ns, reverse=True):
            try:
                saved = storage.load(path)
                if saved["fingerprint"] == _fingerprint(saved["state"]):
                    return saved["state"]
            except (ValueError, KeyError, TypeError):
                pass  # not even a whole file
            path.unlink()
        return None

    def _write(self, path: Path, data: bytes) -> None:
        with self._space():
            storage.write_atomically(path, data)

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
    from .. import __version__

    return {"orderless": __version__, "torch": torch.__version__, "numpy": np.__version__}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else os.uname().machine
