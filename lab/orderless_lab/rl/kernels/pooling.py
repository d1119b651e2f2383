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

from .grouped import Geometry, kernels, pair

TILE = 2048  # entries per program; half as many where maxima and taps are kept


def _run(kernel: Any, tensors: tuple[Tensor, ...], source: Tensor, result: Tensor, g: Geometry,
         tile: int, **options: Any) -> None:  # fmt: skip
    """Run a kernel over all positions of `result`, which reads `source`."""
    batch, channels, height, width = result.shape
    columns = min(128, padded(channels))
    rows = tile // columns
    positions = batch * height * width
    kernel[(math.ceil(positions / rows), math.ceil(channels / columns))](
        *tensors, positions, channels,
        **g.sides(source, (height, width)), ROWS=rows, COLUMNS=columns, **options,
    )  # fmt: skip


class MaxPooling(torch.autograd.Function):
    """`F.max_pool2d` of x `[B, C, H, W]`, channels-last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Geometry) -> Tensor:
        shape = (*x.shape[:2], *g.result((x.shape[2], x.shape[3])))
        layout: Any = {"device": x.device, "memory_format": torch.channels_last}
        remember = ctx.needs_input_grad[0]
        result = torch.empty(shape, dtype=x.dtype, **layout)
        winners = torch.empty(shape, dtype=torch.uint8, **layout) if remember else result
        options = {"TAPS": g.taps, "REMEMBER": remember}
        tile = TILE // 2 if remember else TILE
        _run(kernels.largest, (x, result, winners), x, result, g, tile, **options)
        ctx.geometry = g
        ctx.shape = x.shape
        ctx.save_for_backward(winners)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (winners,) = ctx.saved_tensors
        slope = grads[0].contiguous(memory_format=torch.channels_last)
        result = torch.empty(
            ctx.shape, dtype=slope.dtype, device=slope.device, memory_format=torch.channels_last
        )
        g: Geometry = ctx.geometry
        tensors = (slope, winners, result)
        height = g.kernel[0]
        _run(kernels.to_winners, tensors, slope, result, g, TILE, HEIGHT=height)
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
    kernel = pair(kernel_size)
    margins = pair(padding)
    return (
        runs_on(x)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.dtype in (torch.float32, torch.bfloat16)
        and math.prod(kernel) < 255
        and pair(dilation) == (1, 1)
        and not ceil_mode
        and not return_indices
        and all(2 * margin <= side for margin, side in zip(margins, kernel, strict=True))
    )


def max_pool(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *defaults: Any, **more: Any
) -> Tensor:
    """`F.max_pool2d` where `can_pool`: the other arguments have their defaults."""
    steps = pair(kernel_size if stride is None or stride == [] else stride)
    return MaxPooling.apply(x, Geometry(1, 1, 1, pair(kernel_size), steps, pair(padding)))
