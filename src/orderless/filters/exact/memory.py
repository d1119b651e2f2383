"""Available memory, and a check that the matrices of the features fit into it."""

import os

import torch


def check_memory(n: int, features: int, device: torch.device) -> None:
    """Raise `MemoryError` if sums, factors and a working copy `[2 N + 1, M, M]` do not fit."""
    matrices = 2 * n + 1
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
    """Bytes that can still be allocated on the device, or None if unknown."""
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
