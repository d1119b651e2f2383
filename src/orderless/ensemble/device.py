"""Find devices by name, and their free memory."""

import torch


def find_device(device: torch.device | str) -> torch.device:
    """The device of this name; raises if there is none."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be cpu, cuda or cuda:NUMBER, got {device!r}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"there is no CUDA device here: use cpu, not {found}")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there are {torch.cuda.device_count()} CUDA devices here, no {found}")
    return found


def available_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on the device, or None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux
        return None


def check_memory(needed: int, device: torch.device | str, what: str, fix: str) -> None:
    """Raise `MemoryError` if so many bytes for something are not free on the device."""
    available = available_memory(torch.device(device))
    if available is not None and needed > available:
        raise MemoryError(
            f"{what} need {needed / 2**30:.1f} GiB but {available / 2**30:.1f} GiB are free on "
            f"{device}: use {fix}"
        )
