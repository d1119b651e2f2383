"""Where all particles stand, small enough to keep: what the density figure is drawn from."""

from __future__ import annotations

import math
from typing import TypedDict

import torch
from torch import Tensor

from ..filters import Predictor

PROJECTION = 64  # dimensions kept of a particle's position


class Snapshot(TypedDict):
    """One moment, in a form that a checkpoint can hold."""

    position: Tensor
    log_weights: Tensor
    step: int


@torch.no_grad()
def snapshot(filter: Predictor, step: int) -> Snapshot:
    """Positions `[N, 64]` of all particles under a fixed random projection, and their weights."""
    particles = filter.particles
    total = torch.zeros(particles.shard.count, PROJECTION, device=particles.device)
    generator = torch.Generator().manual_seed(0)
    for parameter in particles.parameters():
        for part in parameter.detach().flatten(1).split(65536, dim=1):
            directions = torch.randn(part.shape[1], PROJECTION, generator=generator)
            total += part.float() @ directions.to(total)
    position = particles.shard.gather(total).cpu() / math.sqrt(PROJECTION)
    return {"position": position, "log_weights": filter.log_weights.cpu(), "step": step}


def stacked(taken: list[Snapshot]) -> dict[str, Tensor]:
    """Snapshots of one run: positions `[S, N, 64]`, log_weights `[S, N]`, step `[S]`."""
    return {
        "positions": torch.stack([s["position"] for s in taken]),
        "log_weights": torch.stack([s["log_weights"] for s in taken]),
        "step": torch.tensor([s["step"] for s in taken]),
    }
