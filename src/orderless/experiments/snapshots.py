"""Where all particles stand, small enough to keep: what the density figure is drawn from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ..filters import ParticleFilter

PROJECTION = 64  # dimensions kept of a particle's position


@torch.no_grad()
def snapshot(filter: ParticleFilter, step: int) -> dict[str, Any]:
    """Positions `[N, 64]` of all particles under a fixed random projection, and their weights."""
    particles = filter.particles
    total = torch.zeros(particles.n, PROJECTION, device=particles.device)
    generator = torch.Generator().manual_seed(0)
    for parameter in particles.parameters():
        for part in parameter.detach().flatten(1).split(65536, dim=1):
            directions = torch.randn(part.shape[1], PROJECTION, generator=generator)
            total += part.float() @ directions.to(total)
    position = total.cpu() / math.sqrt(PROJECTION)
    return {"position": position, "log_weights": filter.log_weights.cpu(), "step": step}


def as_arrays(taken: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Snapshots of one run, stacked."""
    return {
        "positions": np.stack([s["position"].numpy() for s in taken]),
        "log_weights": np.stack([s["log_weights"].numpy() for s in taken]),
        "step": np.array([s["step"] for s in taken]),
    }
