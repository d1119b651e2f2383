r"""Convolutions of N networks on a GPU as one matrix product over all of them, with Triton.

cuDNN computes a grouped convolution of narrow groups one group at a time. Here a program computes
the outputs of one particle at a block of positions: for every tap of the filter the inputs `[M, C]`
under it times the filter's slice `[C, O]`, on tensor cores. Activations are channels-last with the
particles side by side in the channels, `[B, H, W, N, C]` in memory, as in `rules.py`. Filters are
3x3, the stride is 1 and the padding keeps the size, as in all layers of IMPALA.

The gradient with respect to the inputs is the same kernel with the filters turned around. The
gradient with respect to the filters is a sum over positions, split into parts that are added in
fixed order. Networks that share their images are one wide network.
"""

import math
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from operator import add
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from orderless.cuda.fused import padded, runs_on

try:
    from . import triton_kernels as kernels
except ImportError:  # Triton is not installed
    kernels = None  # type: ignore[assignment]

PROGRAMS = 1024  # enough to fill a large GPU
PRECISION = "tf32"  # how float32 factors are multiplied: "tf32" or "ieee"


@dataclass(frozen=True)
class Tile:
    """How a kernel is divided into programs: `rows` patches of neighbouring outputs at a time.

    Neighbours use mostly the same inputs, which are loaded once for a patch; inputs outside of an
    output's filter are multiplied by 0. `inner` is the number of filter entries and `columns` that
    of a patch's outputs at a time. `span` is the number of row blocks that a program of `convolve`
    computes with the same filters; if `inner` covers all entries, they are loaded once.
    """

    patch: tuple[int, int] = (1, 1)
    rows: int = 128
    inner: int = 32
    columns: int = 64
    warps: int = 4
    stages: int = 3
    span: int = 1

    def fitted(self, height: int, width: int) -> "Tile":
        """The tile without patches, if patches do not divide an image of this size."""
        fits = height % self.patch[0] == 0 and width % self.patch[1] == 0
        return self if fits else replace(self, patch=(1, 1))


# By channels in and out, never by the number of particles or samples, which must not change a
# result. These are the best of some twenty on an H200.
_WIDE = Tile(patch=(2, 2), inner=64, columns=128, warps=8)
TILES: dict[tuple[int, int], Tile] = {
    (16, 16): replace(_WIDE, rows=64, inner=512, warps=4, stages=2, span=16),
    (16, 32): _WIDE,
    (32, 16): replace(_WIDE, rows=256, inner=32),
    (32, 32): Tile(),
}
FILTER_TILES: dict[tuple[int, int], Tile] = {  # of the filters' gradient
    (16, 16): replace(_WIDE, rows=32, inner=256),
    (16, 32): replace(_WIDE, rows=64, inner=256),
    (32, 32): replace(_WIDE, patch=(1, 2), rows=64, inner=256),
}


def _tile(inputs: int, outputs: int) -> Tile:
    if inputs < 16:  # the first layer
        return Tile(rows=64, columns=128)
    return TILES.get((inputs, outputs), Tile(inner=32 if inputs <= 32 else 64))


def _filter_tile(inputs: int, outputs: int) -> Tile:
    if inputs < 16:
        return Tile(rows=64, inner=64, columns=128)
    return FILTER_TILES.get((inputs, outputs), Tile(rows=64, inner=256))


def _block(size: int) -> int:
    return max(16, padded(size))  # the smallest size of tl.dot


def convolve(source: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
    """The kernel over all positions: `[B, N*C, H, W]`, filters `[N, 3, 3, C, O]`."""
    n, _, _, inputs, outputs = filters.shape
    batch, _, height, width = source.shape
    result = torch.empty(
        (batch, n * outputs, height, width),
        dtype=source.dtype,
        device=source.device,
        memory_format=torch.channels_last,
    )
    tile = _tile(inputs, outputs).fitted(height, width)
    high, wide = tile.patch
    entries = (high + 2) * (wide + 2) * inputs
    columns = min(tile.columns, _block(high * wide * outputs))
    patches = batch * height * width // (high * wide)
    blocks = math.ceil(patches / (tile.rows * tile.span))
    offset = result if bias is None else bias.contiguous()  # it may be a view of another tensor
    kernels.convolve[blocks * n, math.ceil(high * wide * outputs / columns)](
        source, filters, offset, result, patches,
        N=n, IN=inputs, OUT=outputs, H=height, W=width,
        HAS_BIAS=bias is not None, PRECISION=PRECISION, HIGH=high, WIDE=wide, SPAN=tile.span,
        ROWS=tile.rows, INNER=min(tile.inner, _block(entries)), COLUMNS=columns,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return result


def filter_gradients(source: Tensor, slope: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weight `[N, O, C, 3, 3]` and bias `[N, O]`, summed in float32."""
    n, outputs, inputs = weight.shape[:3]
    batch, _, height, width = source.shape
    tile = _filter_tile(inputs, outputs).fitted(height, width)
    high, wide = tile.patch
    window = high + 2, wide + 2
    entries = math.prod(window) * inputs
    across = high * wide * outputs
    patches = batch * height * width // (high * wide)
    inner = min(tile.inner, _block(entries))
    columns = min(tile.columns, _block(across))
    tiles = math.ceil(entries / inner) * math.ceil(across / columns)
    parts = max(1, min(PROGRAMS // (n * tiles), patches // (8 * tile.rows)))
    share = tile.rows * math.ceil(patches / parts / tile.rows)
    sums = torch.empty((parts, n, entries + 1, across), dtype=torch.float32, device=source.device)
    kernels.filters[parts * n, tiles](
        source, slope, sums, patches,
        N=n, IN=inputs, OUT=outputs, H=height, W=width, PRECISION=PRECISION,
        HIGH=high, WIDE=wide, SHARE=share, ROWS=tile.rows, INNER=inner, COLUMNS=columns,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    total = sums.sum(0)
    # the part of the window under the filter, for each position in the patch
    windows = total[:, :-1].view(n, *window, inputs, high, wide, outputs)
    positions = product(range(high), range(wide))
    parts_of_patches = (windows[:, h : h + 3, w : w + 3, :, h, w] for h, w in positions)
    of_weight = reduce(add, parts_of_patches).permute(0, 4, 3, 1, 2)
    of_bias = total[:, -1].view(n, -1, outputs).sum(1)
    return of_weight.to(weight.dtype), of_bias.to(weight.dtype)


class Convolution(torch.autograd.Function):
    """x `[B, N*C, H, W]`, channels-last; weight `[N, O, C, 3, 3]`; bias `[N, O]` or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return convolve(x, _laid_out(weight.permute(0, 3, 4, 2, 1), x.dtype), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slope = grads[0].contiguous(memory_format=torch.channels_last)
        x, weight = ctx.saved_tensors
        wants_x, _, wants_bias = ctx.needs_input_grad
        of_x = None
        if wants_x:
            turned = weight.flip(3, 4).permute(0, 3, 4, 1, 2)
            of_x = convolve(slope, _laid_out(turned, x.dtype), None)
        of_weight, of_bias = filter_gradients(x, slope, weight)
        return of_x, of_weight, of_bias if wants_bias else None


def _laid_out(filters: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy that is contiguous and of this type, by one kernel."""
    return torch.empty(filters.shape, dtype=dtype, device=filters.device).copy_(filters)


def _autocast_dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def can_convolve(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> bool:
    """Whether the kernels apply: in reduced precision, for exact float32 is left to cuDNN."""
    reduced = torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    dtype = _autocast_dtype(x)
    return (
        runs_on(x)
        and (dtype is torch.bfloat16 or (reduced and dtype is torch.float32))
        and weight.shape[-2:] == (3, 3)
        and both(stride) == both(padding) == both(dilation) == (1, 1)
    )


def both(value: Any) -> Any:
    """A size of both sides, which torch accepts as one number too."""
    return (value, value) if isinstance(value, int) else tuple(value)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.conv2d` of N networks on `[B, N*C, H, W]`: `[B, N*O, H, W]`, channels-last."""
    wide = x.to(_autocast_dtype(x)).contiguous(memory_format=torch.channels_last)
    return Convolution.apply(wide, weight, bias)
