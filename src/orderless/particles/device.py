"""Find devices by name, and suspend garbage collection during recordings."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def no_garbage() -> Iterator[None]:
    """Disable garbage collection while a CUDA graph is recorded.

    Freeing the memory of an old graph would make the recording fail.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
