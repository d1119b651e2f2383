"""A function of tensors as a CUDA graph, with the memory that it reads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..particles.device import no_garbage


class Recorded:
    """`function(*inputs)`, recorded once; what a call returns is overwritten by the next one.

    The function must have run before: some things can only be done outside of a recording. Inputs
    may also lie in pinned memory, which must stay as it is until the call's results have arrived.
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
