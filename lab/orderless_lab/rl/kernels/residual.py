r"""Residual blocks of N networks, x + conv(relu(conv(relu(x)))), fused into the convolutions.

In torch, half of the memory traffic of a block of narrow layers is relu, addition and their
gradients. Here the kernel of `grouped.py` applies relu, adds x, and sets gradients to 0 where relu
was 0 before it stores its result:

    outer = relu(x),        inner = relu(conv_1(outer)),        y = conv_2(inner) + x
    d inner = conv_2^T(dy) [inner > 0],        dx = conv_1^T(d inner) [outer > 0] + dy
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .grouped import Geometry, autocast, filter_gradients, gather, geometry_of, laid_out

FORWARD = 0, 3, 4, 2, 1  # filters [N, kh, kw, in, out]
BACKWARD = 0, 3, 4, 1, 2  # [N, kh, kw, out, in]


class ResidualBlock(torch.autograd.Function):
    """x `[B, N*C, H, W]`, channels-last; weights `[N, C, C, kh, kw]`; biases `[N, C]`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, g: Geometry
    ) -> Tensor:
        size = x.shape[2], x.shape[3]
        filters = [laid_out(weight, FORWARD, x.dtype) for weight in (w1, w2)]
        outer = F.relu(x)
        inner = gather(outer, filters[0], b1, size, g, False, relu=True)
        y = gather(inner, filters[1], b2, size, g, False, added=x)
        ctx.save_for_backward(x, outer, inner, w1, w2)
        ctx.geometry = g
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, outer, inner, w1, w2 = ctx.saved_tensors
        g: Geometry = ctx.geometry
        slope = grads[0].contiguous(memory_format=torch.channels_last)
        size = x.shape[2], x.shape[3]
        filters = [laid_out(weight, BACKWARD, x.dtype) for weight in (w1, w2)]
        of_second = filter_gradients(inner, slope, w2, g)
        middle = gather(slope, filters[1], None, size, g, True, signs=inner)
        of_first = filter_gradients(outer, middle, w1, g)
        grad_x = gather(middle, filters[0], None, size, g, True, signs=outer, added=slope)
        return grad_x, *of_first, *of_second, None


def can_fuse(first: nn.Conv2d, second: nn.Conv2d) -> bool:
    """Whether both layers keep the size and have multiples of 16 channels, and biases."""
    channels = first.in_channels
    side = first.kernel_size[0]
    return (
        channels % 16 == 0
        and side % 2 == 1
        and all(_keeps_size(layer, channels, side) for layer in (first, second))
    )


def _keeps_size(layer: nn.Conv2d, channels: int, side: int) -> bool:
    shape = layer.in_channels, layer.out_channels, layer.kernel_size, layer.groups
    moves = layer.stride, layer.padding, layer.dilation, layer.padding_mode
    half = side // 2
    return (
        shape == (channels, channels, (side, side), 1)
        and moves == ((1, 1), (half, half), (1, 1), "zeros")
        and layer.bias is not None
    )


def residual_blocks(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """The blocks of N networks on `[B, N*C, H, W]`, channels-last."""
    x = autocast(x).contiguous(memory_format=torch.channels_last)
    return ResidualBlock.apply(x, w1, b1, w2, b2, geometry_of(w1, 1, w1.shape[3] // 2))
