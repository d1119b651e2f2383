"""Devices: names, free memory, random generators; precision of products, kernels and threads."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

PRECISIONS = ("float32", "tf32", "bf16")


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


def matrix_precision(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Run in `float32` (no reduced products anywhere), `tf32` (tensor cores) or `bf16` (autocast).

    torch lets cuDNN use TF32 by default; here precision is reduced only on request. With `bf16`,
    operations that stay in float32, such as products of bf16 factors, use TF32, which has more
    digits than their factors.
    """
    if device.type == "cuda":
        return _on_cuda(precision, device)
    return _autocast(device) if precision == "bf16" else nullcontext()


@contextmanager
def _on_cuda(precision: str, device: torch.device) -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    switches = torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee" if precision == "float32" else "tf32"
    try:
        with _autocast(device, precision == "bf16"):
            yield
    finally:
        for switch, was in zip(switches, before, strict=True):
            switch.fp32_precision = was


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Leave autocast if it is on: to enter and leave it costs as much as a small product."""
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


@contextmanager
def same_kernels() -> Iterator[None]:
    """Make cuDNN choose deterministic kernels, and without timing several.

    `cudnn.flags` cannot be used: it reads torch's older TF32 setting, which fails after the newer
    one is set.
    """
    cudnn: Any = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Run in one thread, for many small operations in parallel workers.

    Sums then do not depend on the number of cores, and threads do not wait for each other on a busy
    machine, which can cost a hundredfold.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _autocast(device: torch.device, enabled: bool = True) -> torch.autocast:
    """Autocast without its cache of weights, because particles move in the middle of a step."""
    return torch.autocast(device.type, torch.bfloat16, enabled, cache_enabled=False)


def generators_of(device: torch.device) -> list[torch.Generator]:
    """torch's generators; none while a CUDA graph is recorded, when they cannot be read."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return []
    used = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        used.append(torch.cuda.default_generators[index])
    return used
