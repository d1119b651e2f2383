"""Asynchronous transfers of frames and actions between host and GPU, and recorded functions.

A GPU reads and writes pinned memory asynchronously; for other memory the host must wait. On the
CPU, frames and actions are the arrays themselves.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orderless.ensemble.device import no_garbage

from .environment import Array


class Staging:
    """Pinned memory for the frames and actions of `n_envs` environments; `rows` selects some."""

    def __init__(self, n_envs: int, device: torch.device) -> None:
        self.n_envs, self.device = n_envs, device
        self._frames: Tensor | None = None
        self._actions: Tensor | None = None
        self._written = torch.cuda.Event() if device.type == "cuda" else None

    def frames(self, observations: Array, rows: slice) -> Tensor:
        """Frames that the device can read; they replace the last, whose actions have arrived."""
        frames = torch.from_numpy(observations)
        if self._written is None:
            return frames
        if self._frames is None:
            shape = self.n_envs, *frames.shape[1:]
            self._frames = torch.empty(shape, dtype=frames.dtype, pin_memory=True)
        # By numpy: torch would use all cores, whose threads then compete with the environments.
        np.copyto(self._frames.numpy()[rows], observations)
        return self._frames[rows]

    def fetch(self, actions: Tensor, rows: slice) -> Callable[[], Array]:
        """Start to copy actions to the host; the returned function waits for them."""
        if self._written is None:
            return actions.numpy
        if self._actions is None:
            self._actions = torch.empty(self.n_envs, dtype=actions.dtype, pin_memory=True)
        host, written = self._actions[rows], self._written
        host.copy_(actions, non_blocking=True)
        written.record()

        def arrived() -> Array:
            written.synchronize()
            return host.numpy()

        return arrived


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
