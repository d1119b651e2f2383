"""Random choices that depend on (seed, draw, index) and on nothing else, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from ..particles import random

# Streams of their own, apart from each other and from the networks' dropout.
ACTION, PARTICLE, MINIBATCH, TRANSITION = (1 << 22) + 1, (1 << 22) + 2, (1 << 22) + 3, (1 << 22) + 4


def gumbel(seed: int, draw: Tensor, indices: Tensor, count: int, stream: int) -> Tensor:
    """Standard Gumbel noise `[len(indices), count]`: log p + noise is largest at a draw from p."""
    keys = random.particle_keys(seed, draw, indices, stream)
    uniform = random.uniform(keys, (count,)).clamp(max=1.0 - 2.0**-24)  # log(-log 1) is infinite
    return -(-uniform.log()).log()


def permutation(seed: int, draw: int, index: int, count: int, device: torch.device) -> Tensor:
    """0 ... count-1 in random order, `[count]`."""
    place = torch.tensor([index], dtype=torch.int64, device=device)
    number = torch.tensor(draw, dtype=torch.int64, device=device)
    keys = random.particle_keys(seed, number, place, MINIBATCH)
    return random.uniform(keys, (count,))[0].argsort(stable=True)
