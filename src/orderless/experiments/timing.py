"""How long something takes, with all that it started on the device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def seconds(action: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    begun = time.monotonic()
    action()
    _wait(device)
    return time.monotonic() - begun


def settle(action: Callable[[], object], device: torch.device) -> None:
    """On CUDA a new step runs as it is, is recorded, and only then replayed: get that over with."""
    if device.type == "cuda":
        action()
        action()


def span(time: float) -> str:
    if time < 90:
        return f"{time:.0f} s"
    return f"{time / 60:.0f} min" if time < 5400 else f"{time / 3600:.1f} h"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
