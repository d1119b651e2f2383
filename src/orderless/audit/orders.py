"""Orders of tasks and batches of samples; generators are keyed on what they may depend on."""

import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

Order = tuple[int, ...]


def keyed_generator(purpose: str, *key: int) -> torch.Generator:
    """A CPU generator for one purpose and key, independent of all others.

    The key is hashed, because sums of seeds and task numbers would collide.
    """
    text = " ".join([purpose, *(str(int(part)) for part in key)])
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return torch.Generator().manual_seed(seed)


def draw_orders(tasks: int, count: int, seed: int) -> list[Order]:
    """`count` different orders of so many tasks, or all: that of the list, then random ones.

    Order k depends on (tasks, seed, k) only, not on their number.
    """
    generator = keyed_generator("orders", seed, tasks)
    orders = {tuple(range(tasks)): None}  # a dict keeps the order of insertion
    while len(orders) < min(count, math.factorial(tasks)):
        orders[tuple(torch.randperm(tasks, generator=generator).tolist())] = None
    return list(orders)


def shuffled_batches(
    x: Tensor, y: Tensor, *, batch_size: int, epochs: int, key: tuple[int, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of `epochs` passes over one task; `key`, its seed and number, shuffles them.

    The incomplete batch at the end of a pass is dropped.
    """
    size = min(batch_size, len(y))
    for epoch in range(epochs):
        generator = keyed_generator("shuffle audit", *key, epoch)
        shuffled = torch.randperm(len(y), generator=generator).to(x.device)
        for start in range(0, len(y) - size + 1, size):
            rows = shuffled[start : start + size]
            yield x[rows], y[rows]
