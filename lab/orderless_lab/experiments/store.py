"""A run directory: records of finished cells, checkpoints of unfinished ones, snapshots.

DIR/cells/NAME.json          one finished cell each, with a checksum
DIR/checkpoints/NAME.K.st    the last two checkpoints of a cell that is being computed
DIR/snapshots/NAME.st        particle positions over training, for the density figure
"""

import os
from collections.abc import Callable
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderless.io import load, save
from orderless_lab.storage import DamagedFile, Directory, StoreError, read_cell, versions
from orderless_lab.storage.directory import set_aside

__all__ = ["DamagedFile", "Store", "StoreError", "device_name", "read_cell", "versions"]


class Store(Directory):
    """Reads and writes one run directory."""

    folders = ("cells", "checkpoints", "snapshots")

    def __init__(self, directory: str | Path) -> None:
        super().__init__(directory)
        self._newest: dict[str, Path] = {}  # checkpoint of each cell

    def readers(self, name: str) -> dict[Path, Callable[[Path], Any]]:
        return {**super().readers(name), self.snapshots_path(name): load}

    def write_cell(self, name: str, record: object) -> None:
        """Write the record of a finished cell, and delete its checkpoints."""
        super().write_cell(name, record)
        self.drop_checkpoints(name)

    def tidy(self, name: str, *, finished: bool) -> None:
        super().tidy(name, finished=finished)
        if finished:
            self.drop_checkpoints(name)

    def drop_checkpoints(self, name: str) -> None:
        """Delete the checkpoints of a cell, and partial files of killed processes."""
        for pattern in (f"{escape(name)}.*.st", f".{escape(name)}.*.st.*.part"):
            for path in (self.directory / "checkpoints").glob(pattern):
                path.unlink(missing_ok=True)

    def snapshots_path(self, name: str) -> Path:
        return self.directory / "snapshots" / f"{name}.st"

    def write_snapshots(self, name: str, snapshots: dict[str, Tensor]) -> None:
        with self.space():
            save(self.snapshots_path(name), snapshots)

    def _checkpoints(self, name: str) -> list[Path]:
        return [self.directory / "checkpoints" / f"{name}.{k}.st" for k in (0, 1)]

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
        best, furthest = None, None
        for path in filter(Path.exists, self._checkpoints(name)):
            state = None
            with suppress(ValueError):
                state = load(path)
            if not isinstance(state, dict):
                set_aside(path)
                continue
            come = progress(state)
            if come is not None and (furthest is None or come > furthest):
                best, furthest, self._newest[name] = state, come, path
        return best


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else os.uname().machine
