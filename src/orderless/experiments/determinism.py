"""The same bits again on a GPU, where the fastest kernels add in whatever order they finish."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """torch's deterministic kernels, if `wanted`; an operation that has none warns and goes on."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS begins
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        # the fastest of cuDNN's algorithms by the clock would be another one tomorrow
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            yield
    finally:
        torch.set_deterministic_debug_mode(before)
