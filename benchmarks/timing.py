"""Timing of several ways of doing one thing in one run, so that their ratios are comparable."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable

import torch

CALLS = 10  # on a GPU
SETTLING = 3  # calls before the measurement, to fill caches and the allocator


def medians(
    ways: dict[str, Callable[[], object]], device: torch.device, rounds: int = 30, warmup: int = 5
) -> dict[str, float]:
    """Median milliseconds per call. Ways alternate, so that other load affects all of them alike.

    Each timed call follows calls of the same way, so that caches, memory and threads are as in a
    training loop.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(warmup):
        for way in ways.values():
            way()
    for _ in range(rounds):
        for name, way in ways.items():
            for _ in range(SETTLING):
                way()
            times[name].append(_once(way, device))
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def _once(way: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        # Several calls between two events: a single one would include the host's wake-up time.
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(CALLS):
            way()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / CALLS
    begun = time.perf_counter()
    way()
    return (time.perf_counter() - begun) * 1e3


def machine(device: torch.device) -> str:
    """The machine and the version of torch, in words."""
    card = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    return f"{card}, {torch.get_num_threads()} CPU threads, torch {torch.__version__}"


def print_table(header: list[str], rows: Iterable[list[str]]) -> None:
    """Print a Markdown table for docs/speed.md, one row at a time."""
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
