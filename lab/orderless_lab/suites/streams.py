"""Seeded randomness of scenarios: orders of tasks, and shuffles that can start at any batch.

Each stream has its own generator, keyed on exactly what it may depend on.
"""

import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from orderless.errors import UserError


def keyed_generator(purpose: str, *key: int) -> torch.Generator:
    """A CPU generator for one purpose and key, independent of all others.

    The key is hashed, because sums of seeds and task numbers would collide.
    """
    text = " ".join([purpose, *(str(int(part)) for part in key)])
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return torch.Generator().manual_seed(seed)


def orders(n_tasks: int, permutations: int, seed: int) -> list[tuple[int, ...]]:
    """`permutations` different orders of `n_tasks` tasks: the identity, then random ones.

    Order k depends on (n_tasks, seed, k) only, not on the number of permutations.
    """
    if n_tasks < 1:
        raise UserError(f"n_tasks must be at least 1, got {n_tasks}")
    if permutations < 1:
        raise UserError(f"permutations must be at least 1, got {permutations}")
    if permutations > math.factorial(n_tasks):
        raise UserError(
            f"permutations must be at most {math.factorial(n_tasks)}, the number of orders of "
            f"{n_tasks} tasks, got {permutations}"
        )
    generator = keyed_generator("orders", seed, n_tasks)
    found = {tuple(range(n_tasks)): None}  # a dict keeps the order of insertion
    while len(found) < permutations:
        found[tuple(torch.randperm(n_tasks, generator=generator).tolist())] = None
    return list(found)


def count_batches(samples: int, batch_size: int, epochs: int, iterations: int | None) -> int:
    """The number of batches in `epochs` passes, or `iterations` if given."""
    for name, value in (("batch_size", batch_size), ("epochs", epochs), ("iterations", iterations)):
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")
    return epochs * max(1, samples // batch_size) if iterations is None else iterations


def shuffled_batches(
    stream: str,
    key: tuple[int, ...],
    *,
    samples: int,
    batch_size: int,
    total: int,
    start: int,
    device: torch.device,
) -> Iterator[tuple[int, Tensor]]:
    """Yield (number, indices [B]) of the batches `start`..`total`-1 of a stream.

    Every pass over the data is shuffled by a generator keyed on the pass, so the stream can start
    at any batch. The incomplete batch at the end of a pass is dropped.
    """
    size = min(batch_size, samples)
    per_pass = samples // size
    for number in range(start, total):
        this_pass, place = divmod(number, per_pass)
        if place == 0 or number == start:
            generator = keyed_generator(f"shuffle {stream}", *key, this_pass)
            shuffled = torch.randperm(samples, generator=generator).to(device)
        yield number, shuffled[place * size : (place + 1) * size]
