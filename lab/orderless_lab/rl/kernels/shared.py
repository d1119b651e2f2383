"""The first convolution of N networks with the same images, as one product with Triton.

All filters form one wide matrix `[K + 1, N*O]`, with K entries per filter and one for the bias,
whose input is 1. A program loads its patches of the images once and multiplies them with block
after block of that matrix, so nearly all memory traffic is the result. The gradient with respect to
the filters is the transposed product, split into parts that are added in fixed order.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from orderless.cuda.fused import padded

from .grouped import PROGRAMS, Geometry, autocast, can_group, geometry_of, kernels

ENTRIES = 64  # entries of a filter with its bias, at most: a patch stays in registers
TILE = {"num_warps": 4, "num_stages": 3}
ROWS = 64  # positions at a time
COLUMNS = 128  # filters at a time


def _columns(g: Geometry) -> int:
    return min(COLUMNS, max(16, padded(g.n * g.outputs)))  # the smallest size of tl.dot


def _sizes(x: Tensor, g: Geometry, size: tuple[int, int]) -> dict[str, int | str]:
    inner = g.inputs * g.taps
    return {
        "OUT": g.n * g.outputs, "IN": g.inputs, "INNER": inner, **g.sides(x, size),
        "ENTRIES": max(16, padded(inner + 1)), "COLUMNS": _columns(g),
        "PRECISION": g.precision, **TILE,
    }  # fmt: skip


class SharedConvolution(torch.autograd.Function):
    """x `[B, C, H, W]`, the same for all; weight `[N, O, C, kh, kw]`; bias `[N, O]` or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
        ctx.save_for_backward(x)
        ctx.geometry = g
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        outputs = g.n * g.outputs
        size = g.result((x.shape[2], x.shape[3]))
        filters = weight.permute(3, 4, 2, 0, 1).reshape(-1, outputs)
        offsets = filters.new_zeros(outputs) if bias is None else bias.reshape(-1)
        wide = torch.cat([filters, offsets.unsqueeze(0)]).to(x.dtype)
        shape = (len(x), outputs, *size)
        positions = len(x) * size[0] * size[1]
        layout: Any = {"memory_format": torch.channels_last}
        result = torch.empty(shape, dtype=x.dtype, device=x.device, **layout)
        rows = ROWS if _columns(g) == COLUMNS else 2 * ROWS  # for few filters
        kernels.spread[(math.ceil(positions / rows),)](
            x, wide, result, positions, *x.stride(),
            ROWS=rows, **_sizes(x, g, size),
        )  # fmt: skip
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        g: Geometry = ctx.geometry
        slope = grads[0].contiguous(memory_format=torch.channels_last)
        outputs = g.n * g.outputs
        size = (slope.shape[2], slope.shape[3])
        positions = len(x) * size[0] * size[1]
        rows = ROWS
        tiles = math.ceil(outputs / _columns(g))
        parts = max(1, min(PROGRAMS // tiles, positions // (8 * rows)))
        share = rows * math.ceil(positions / parts / rows)
        entries = g.inputs * g.taps + 1
        sums = torch.empty((parts, entries, outputs), dtype=torch.float32, device=x.device)
        kernels.spread_filters[(parts, tiles)](
            x, slope, sums, positions, *x.stride(),
            SHARE=share, ROWS=rows, **_sizes(x, g, size),
        )  # fmt: skip
        total = sums.sum(0)
        of_weight, of_bias = ctx.dtypes
        shape = *g.kernel, g.inputs, g.n, g.outputs
        weight = total[:-1].view(shape).permute(3, 4, 2, 0, 1).to(of_weight)
        bias = None if of_bias is None else total[-1].view(g.n, g.outputs).to(of_bias)
        return None, weight, bias, None


def can_share(x: Tensor, weight: Tensor, padding: Any, dilation: Any) -> bool:
    """Whether the kernel applies: small filters, on images that need no gradient."""
    return (
        can_group(x, padding, dilation)
        and not x.requires_grad
        and math.prod(weight.shape[2:]) < ENTRIES
    )


def shared_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any
) -> Tensor:
    """`F.conv2d` of N networks on `[B, C, H, W]`: `[B, N*O, H', W']`, channels-last."""
    return SharedConvolution.apply(autocast(x), weight, bias, geometry_of(weight, stride, padding))
