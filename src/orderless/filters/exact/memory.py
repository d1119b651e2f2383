"""Whether the matrices of so many features fit into memory."""

import os

import torch


def check_memory(n: int, features: int, device: torch.device) -> None:
    """Refuse what would not fit: sums and factors `[N, M, M]`, and one `[M, M]` to solve."""
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
