"""Whether the matrices of so many features fit into memory, and how many to solve at once."""

from __future__ import annotations

import os

import torch


def solved_together(
    n: int, features: int, device: torch.device, chunk_size: int | None = None
) -> int:
    """How many heads to solve as one batch: a large matrix fills a GPU by itself, and on the CPU
    LAPACK takes one after another anyway."""
    return 1 if device.type == "cpu" else max(1, min(n, chunk_size or n, 2**24 // features**2))


def check_memory(n: int, features: int, device: torch.device) -> None:
    """Refuse what would not fit: sums and factors `[N, M, M]`, and three `[M, M]` to solve one."""
    matrices = 2 * n + 3 * solved_together(n, features, device)
    needed = 8 * (features + 1) ** 2 * matrices
    available = available_memory(device)
    if available is not None and needed > available:
        fits = int((available / (8 * matrices)) ** 0.5)
        raise MemoryError(
            f"{n} particles with {features} features need {needed / 2**30:.1f} GiB of matrices but "
            f"{available / 2**30:.1f} GiB are free on {device}: use at most {fits} features, or "
            "fewer particles"
        )


def available_memory(device: torch.device) -> int | None:
    """Bytes that could still be allocated on the device, or None where nobody tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
