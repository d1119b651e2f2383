"""Max-pooling of channels-last activations with Triton: 3x3, stride 2, as in IMPALA.

torch's kernel for this layout stores 64-bit indices and takes several times as long as the memory
traffic requires. Here one byte stores the tap of the window's maximum, and the backward pass sums,
for every input, the gradients of the windows whose maximum it is.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from orderless.cuda.fused import padded, runs_on

from .convolution import both, kernels

TILE = 2048  # entries per program; half as many where maxima and taps are kept


def _empty(like: Tensor, size: torch.Size, dtype: torch.dtype) -> Tensor:
    layout: Any = torch.channels_last
    return torch.empty(size, dtype=dtype, device=like.device, memory_format=layout)


def _run(kernel: Any, tensors: tuple[Tensor, ...], tile: int = TILE, **options: bool) -> None:
    """Run a kernel from the first tensor to all positions of the last that is as large."""
    source, *_, result = tensors
    batch, channels, height, width = result.shape
    columns = min(128, padded(channels))
    rows = tile // columns
    positions = batch * height * width
    kernel[math.ceil(positions / rows), math.ceil(channels / columns)](
        *tensors, positions, channels,
        FROM_H=source.shape[2], FROM_W=source.shape[3], TO_H=height, TO_W=width,
        ROWS=rows, COLUMNS=columns, **options,
    )  # fmt: skip


class MaxPooling(torch.autograd.Function):
    """`F.max_pool2d(x, 3, stride=2, padding=1)` of x `[B, C, H, W]`, channels-last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        shape = torch.Size([*x.shape[:2], *((length + 1) // 2 for length in x.shape[2:])])
        result = _empty(x, shape, x.dtype)
        remember = ctx.needs_input_grad[0]
        winners = _empty(x, shape, torch.uint8) if remember else result
        tile = TILE // 2 if remember else TILE
        _run(kernels.largest, (x, result, winners), tile, REMEMBER=remember)
        ctx.shape = x.shape
        ctx.save_for_backward(winners)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (winners,) = ctx.saved_tensors
        slope = grads[0].contiguous(memory_format=torch.channels_last)
        result = _empty(slope, ctx.shape, slope.dtype)
        _run(kernels.to_winners, (slope, winners, result))
        return result


def can_pool(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0) -> bool:
    """Whether the kernel applies to these arguments of `F.max_pool2d`."""
    return (
        runs_on(x)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.dtype in (torch.float32, torch.bfloat16)
        and (both(kernel_size), both(stride or kernel_size), both(padding))
        == ((3, 3), (2, 2), (1, 1))
    )


def max_pool(x: Tensor) -> Tensor:
    """`F.max_pool2d` where `can_pool`."""
    return MaxPooling.apply(x)
