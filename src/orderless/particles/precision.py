"""How products are carried out, said explicitly and undone afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

PRECISIONS = ("float32", "tf32", "bf16")


@contextmanager
def matrix_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Run in `float32` (no reduced products anywhere), `tf32` (tensor cores) or `bf16` (autocast).

    torch lets cuDNN use TF32 by default; here nothing is reduced unless asked for. With
    `bf16` what is left in float32, such as products of bf16 factors, goes through TF32, which holds
    more digits than they have.
    """
    reduced = precision == "bf16"
    if device.type != "cuda":
        with _autocast(device) if reduced else nullcontext():
            yield
        return
    cudnn: Any = torch.backends.cudnn
    switches = torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee" if precision == "float32" else "tf32"
    try:
        with _autocast(device, reduced):
            yield
    finally:
        for switch, was in zip(switches, before, strict=True):
            switch.fp32_precision = was


@contextmanager
def same_kernels() -> Iterator[None]:
    """cuDNN neither tries several kernels by the clock nor takes one that adds in any order.

    Not by `cudnn.flags`: it asks for TF32 in torch's older way, which fails after the newer one.
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
    """What is small and there is much of has a thread each: neither cores nor workers change a sum,
    and threads that wait for each other on a busy machine do not cost a hundredfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _autocast(device: torch.device, enabled: bool = True) -> torch.autocast:
    """Without its cache of weights: particles move in the middle of a step, unknown to it."""
    return torch.autocast(device.type, torch.bfloat16, enabled, cache_enabled=False)
