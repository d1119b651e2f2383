"""Frames on their way to a GPU, and functions recorded as CUDA graphs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orderless.ensemble.device import no_garbage

from .environment import Array


class Staging:
    """Frames of an environment in pinned memory, which a GPU reads asynchronously."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned: Tensor | None = None

    def __call__(self, observations: Array) -> Tensor:
        """Frames that the device can read; they replace the last, whose actions have arrived."""
        frames = torch.from_numpy(observations)
        if self.device.type != "cuda":
            return frames
        if self._pinned is None:
            self._pinned = torch.empty(frames.shape, dtype=frames.dtype, pin_memory=True)
        # By numpy: torch would use all cores, whose threads then compete with the environments.
        np.copyto(self._pinned.numpy(), observations)
        return self._pinned


class Recorded:
    """`function(*inputs)` as a CUDA graph; each call overwrites the results of the last one.

    The function must have run once before, because some initialisation cannot be recorded. Inputs
    may be in pinned memory, which must not change until the call's results have arrived.
    """

    def __init__(self, function: Callable[..., Any], *inputs: Tensor) -> None:
        self.function = function  # keeps the tensors alive that the graph reads
        self.inputs = tuple(tensor.to("cuda", copy=True) for tensor in inputs)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with no_garbage(), torch.cuda.graph(self.graph):
            self.result = function(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Any:
        for static, tensor in zip(self.inputs, inputs, strict=True):
            static.copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.result
