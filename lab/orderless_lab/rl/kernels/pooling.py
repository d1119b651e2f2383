"""Max-pooling of channels-last activations with Triton.

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


def _run(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    window: tuple[int, int, int],
    tile: int = TILE,
    **options: bool,
) -> None:
    """Run a kernel from the first tensor to all positions of the last that is as large."""
    source, *_, result = tensors
    batch, channels, height, width = result.shape
    columns = min(128, padded(channels))
    rows = tile // columns
    positions = batch * height * width
    kernel[math.ceil(positions / rows), math.ceil(channels / columns)](
        *tensors, positions, channels,
        FROM_H=source.shape[2], FROM_W=source.shape[3], TO_H=height, TO_W=width,
        SIDE=window[0], STRIDE=window[1], PADDING=window[2],
        ROWS=rows, COLUMNS=columns, **options,
    )  # fmt: skip


class MaxPooling(torch.autograd.Function):
    """`F.max_pool2d` of x `[B, C, H, W]`, channels-last; `window` is (side, stride, padding)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: tuple[int, int, int]) -> Tensor:
        side, stride, padding = window
        size = [(length + 2 * padding - side) // stride + 1 for length in x.shape[2:]]
        shape = torch.Size([*x.shape[:2], *size])
        result = _empty(x, shape, x.dtype)
        remember = ctx.needs_input_grad[0]
        winners = _empty(x, shape, torch.uint8) if remember else result
        tile = TILE // 2 if remember else TILE
        _run(kernels.largest, (x, result, winners), window, tile, REMEMBER=remember)
        ctx.window = window
        ctx.shape = x.shape
        ctx.save_for_backward(winners)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (winners,) = ctx.saved_tensors
        slope = grads[0].contiguous(memory_format=torch.channels_last)
        result = _empty(slope, ctx.shape, slope.dtype)
        _run(kernels.to_winners, (slope, winners, result), ctx.window)
        return result, None


def can_pool(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """Whether the kernel applies to these arguments of `F.max_pool2d`."""
    sides = [both(kernel_size), both(stride or kernel_size), both(padding)]
    return (
        runs_on(x)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.dtype in (torch.float32, torch.bfloat16)
        and all(height == width for height, width in sides)
        and sides[0][0] ** 2 < 255
        and 2 * sides[2][0] <= sides[0][0]
        and both(dilation) == (1, 1)
        and not ceil_mode
        and not return_indices
    )


def max_pool(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *defaults: Any, **more: Any
) -> Tensor:
    """`F.max_pool2d` where `can_pool`: the other arguments have their defaults."""
    window = both(kernel_size)[0], both(stride or kernel_size)[0], both(padding)[0]
    return MaxPooling.apply(x, window)
