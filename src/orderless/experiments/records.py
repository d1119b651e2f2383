"""What the records of all cells share: numbers off a filter, and areas under learning curves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..filters import ParticleFilter
from ..particles import Ensemble
from .evaluation import displacement
from .store import device_name


def filter_record(filter: ParticleFilter, initial: Ensemble) -> dict[str, Any]:
    """Where a filter stands at the end, and how far its particles are from their start."""
    moved = np.mean(displacement(filter.networks, initial))
    return {
        "particles": filter.particles.n,
        "log_evidence": finite(float(filter.log_evidence)),
        "temperature": float(filter.temperature),
        "ess": float(filter.ess),
        "moved": finite(float(moved)),
        "alive": int(filter.alive.sum()),
        "device": device_name(filter.particles.device),
    }


def loss_areas(trace: dict[str, list[float]], counts: list[int]) -> list[float | None]:
    """Mean training loss over each task: the area under its learning curve, per step."""
    steps, losses = np.array(trace["step"]), np.array(trace["loss"])
    ends = np.cumsum(counts)
    parts = [
        losses[(steps > end - count) & (steps <= end)]
        for end, count in zip(ends, counts, strict=True)
    ]
    return [finite(float(part.mean())) if len(part) else None for part in parts]


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
