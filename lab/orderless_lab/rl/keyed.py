"""Random choices that depend on (seed, draw, index) alone, on any device."""

import torch
from torch import Tensor

from orderless.ensemble import random

# Random streams, separate from each other and from the networks' dropout.
ACTION = (1 << 22) + 1
PARTICLE = (1 << 22) + 2
MINIBATCH = (1 << 22) + 3
# the largest size of a table of noise
ROWS = 256
ENTRIES = 2**20


def gumbel(seed: int, draw: Tensor, indices: Tensor, count: int, stream: int) -> Tensor:
    """Gumbel noise `[..., count]`: argmax(log p + noise) ~ p; `draw`, `indices` are broadcast."""
    keys = random.particle_keys(seed, draw, indices, stream)
    uniform = random.uniform(keys, (count,)).clamp(max=1.0 - 2.0**-24)  # log(-log 1) is infinite
    return -(-uniform.log()).log()


class Gumbels:
    """`gumbel` for indices 0 ... n-1: `noise(draw)` is `[n, count]`.

    A hash is a hundred small operations, which take as long for one draw as for many, so a table
    of consecutive draws is computed at a time.
    """

    def __init__(self, seed: int, n: int, count: int, stream: int, device: torch.device) -> None:
        self.seed = seed
        self.count = count
        self.stream = stream
        self._indices = torch.arange(n, device=device)
        self._rows = max(1, min(ROWS, ENTRIES // (n * count)))
        self._begin = 0
        self._table = torch.empty(0)

    def __call__(self, draw: int) -> Tensor:
        if not self._begin <= draw < self._begin + len(self._table):
            self._begin = draw
            draws = torch.arange(self._rows, device=self._indices.device).unsqueeze(1) + draw
            self._table = gumbel(self.seed, draws, self._indices, self.count, self.stream)
        return self._table[draw - self._begin]


def permutation(seed: int, draw: int, index: int, count: int, device: torch.device) -> Tensor:
    """A random permutation of 0 ... count-1, `[count]`."""
    number = torch.tensor(draw, dtype=torch.int64, device=device)
    indices = torch.tensor([index], dtype=torch.int64, device=device)
    keys = random.particle_keys(seed, number, indices, MINIBATCH)
    return random.uniform(keys, (count,))[0].argsort(stable=True)
