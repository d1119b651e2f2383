"""Context managers for the precision of products, deterministic kernels and threads."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

PRECISIONS = ("float32", "tf32", "bf16")


@contextmanager
def matrix_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Run in `float32` (no reduced products anywhere), `tf32` (tensor cores) or `bf16` (autocast).

    torch lets cuDNN use TF32 by default; here precision is reduced only on request. With `bf16`,
    operations that stay in float32 use TF32, which has more digits than their bf16 factors.
    """
    cudnn: Any = torch.backends.cudnn
    on_gpu, reduced = device.type == "cuda", precision == "bf16"
    switches = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn) if on_gpu else ()
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee" if precision == "float32" else "tf32"
    autocast: Any = nullcontext()
    if on_gpu or reduced:  # without a cache of weights, as particles move in the middle of a step
        autocast = torch.autocast(device.type, torch.bfloat16, reduced, cache_enabled=False)
    try:
        with autocast:
            yield
    finally:
        for switch, was in zip(switches, before, strict=True):
            switch.fp32_precision = was


@contextmanager
def same_kernels() -> Iterator[None]:
    """Make cuDNN choose deterministic kernels, and without timing several."""
    # not `cudnn.flags`, which reads torch's older TF32 setting and fails after the newer one is set
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
