"""Reading ``snapshots/*.st``: particle positions and weights over training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..storage import saving as storage
from .cells import ReportError


class Snapshots(NamedTuple):
    """positions `[S, N, P]`, log_weights `[S, N]`, step `[S]`."""

    positions: NDArray[Any]
    log_weights: NDArray[Any]
    step: NDArray[Any]


def load_snapshots(path: Path) -> Snapshots:
    """One file of a run; `ReportError` for any damage."""
    try:
        found = storage.load(path)
    except (OSError, ValueError) as error:
        raise ReportError(f"{path.name} cannot be read: {error}") from None
    parts: list[Any] = [
        found.get(key) if isinstance(found, dict) else None for key in Snapshots._fields
    ]
    missing = [
        key
        for key, part in zip(Snapshots._fields, parts, strict=True)
        if not isinstance(part, Tensor)
    ]
    if missing:
        raise ReportError(f"{path.name} lacks {', '.join(missing)}.")
    positions, log_weights, step = parts
    loaded = Snapshots(
        positions.double().numpy(), log_weights.double().numpy(), step.long().numpy()
    )
    shapes = [list(array.shape) for array in loaded]
    if loaded.positions.ndim != 3 or shapes[1] != shapes[0][:2]:
        raise ReportError(f"{path.name}: positions {shapes[0]} do not go with weights {shapes[1]}.")
    if shapes[2] != shapes[0][:1] or not np.isfinite(loaded.positions).all():
        raise ReportError(f"the steps or positions of {path.name} are not usable.")
    return loaded
