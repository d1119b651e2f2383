"""Reading ``snapshots/*.npz``: particle positions and weights over training."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orderless.report.cells import ReportError

LARGEST_ARRAY = 2**30  # bytes; a snapshot of 1,000 particles at 100 moments is 25 MB

# All the ways in which numpy and zipfile say that a file is not what was written.
DAMAGE = (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


class Snapshots(NamedTuple):
    """positions `[S, N, P]`, log_weights `[S, N]`, step `[S]`."""

    positions: NDArray[Any]
    log_weights: NDArray[Any]
    step: NDArray[Any]


def load_snapshots(path: Path) -> Snapshots:
    """One file, its sizes checked before anything is unpacked; `ReportError` for any damage."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        missing = [key for key in Snapshots._fields if f"{key}.npy" not in sizes]
        if missing:
            raise ReportError(f"{path.name} lacks {', '.join(missing)}.")
        if any(sizes[f"{key}.npy"] > LARGEST_ARRAY for key in Snapshots._fields):
            raise ReportError(f"{path.name} is larger than any snapshot can be.")
        with np.load(path, allow_pickle=False) as data:
            loaded = Snapshots(*(data[key] for key in Snapshots._fields))
    except DAMAGE as error:
        raise ReportError(f"{path.name} cannot be read: {error}") from None
    shapes = list(loaded.positions.shape), list(loaded.log_weights.shape)
    if loaded.positions.ndim != 3 or shapes[1] != shapes[0][:2]:
        raise ReportError(f"{path.name}: positions {shapes[0]} do not go with weights {shapes[1]}.")
    if len(loaded.step) != shapes[0][0] or not np.isfinite(loaded.positions).all():
        raise ReportError(f"the steps or positions of {path.name} are not usable.")
    return loaded
