r"""Convolutions of N networks on a GPU as one matrix product over all of them, with Triton.

cuDNN computes a grouped convolution of narrow groups one group at a time. Here a program computes
the outputs of one particle at a block of positions: for every tap of the filter the inputs `[M, C]`
under it times the filter's slice `[C, O]`, on tensor cores. Activations are channels-last with the
particles side by side in the channels, `[B, H, W, N, C]` in memory, as in `rules.py`.

The gradient with respect to the inputs is the same kernel with inputs and outputs exchanged. The
gradient with respect to the filters is a sum over positions, split into parts that are added in
fixed order.
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


@dataclass(frozen=True)
class Tile:
    """How a kernel is divided into programs: `rows` patches of neighbouring outputs at a time.

    Neighbours use mostly the same inputs, which are loaded once for a patch; inputs outside of an
    output's filter are multiplied by 0. `inner` is the number of filter entries and `columns` that
    of a patch's outputs at a time. With `together`, all particles at the same positions follow each
    other, because they share cache lines. `span` is the number of row blocks that a program of
    `gather` computes with the same filters; if `inner` covers all entries, they are loaded once.
    """

    patch: tuple[int, int] = (1, 1)
    rows: int = 128
    inner: int = 32
    columns: int = 64
    warps: int = 4
    stages: int = 3
    together: bool = False
    span: int = 1

    def fitted(self, size: tuple[int, int], stride: tuple[int, int]) -> "Tile":
        """The tile without patches, if patches do not divide a result of this size."""
        high, wide = self.patch
        fits = stride == (1, 1) and size[0] % high == 0 and size[1] % wide == 0
        return self if fits else replace(self, patch=(1, 1))

    def window(self, kernel: tuple[int, int]) -> tuple[int, int]:
        """The size of the inputs under all filters of a patch."""
        return kernel[0] + self.patch[0] - 1, kernel[1] + self.patch[1] - 1

    def grid(self, blocks: int, n: int, across: int) -> tuple[int, int, int]:
        """The grid of a kernel; its first axis is the fastest."""
        return (blocks * n, 1, across) if self.together else (blocks, n, across)


# By channels in and out, never by the number of particles or samples, which must not change a
# result. benchmarks/tiles.py measures them; these are the best on an H200. Other layers use a
# default tile.
_WIDE = Tile(patch=(2, 2), inner=64, columns=128, warps=8, together=True)
TILES: dict[tuple[int, int], Tile] = {
    (16, 16): replace(_WIDE, rows=64, inner=512, warps=4, stages=2, span=16),
    (16, 32): _WIDE,
    (32, 16): replace(_WIDE, rows=256, inner=32),
    (32, 32): Tile(together=True),
}
FILTER_TILES: dict[tuple[int, int], Tile] = {  # of the filters' gradient
    (16, 16): replace(_WIDE, rows=32, inner=256),
    (16, 32): replace(_WIDE, rows=64, inner=256),
    (32, 32): replace(_WIDE, patch=(1, 2), rows=64, inner=256),
}


@dataclass(frozen=True)
class Geometry:
    """Sizes of one convolution; `taps` are the positions of its filter.

    `precision`: how float32 factors are multiplied, "tf32" or "ieee".
    """

    n: int
    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    precision: str = "tf32"

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    def result(self, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the outputs for inputs of this size."""
        sides = zip(size, self.padding, self.kernel, self.stride, strict=True)
        height, width = ((s + 2 * p - k) // stride + 1 for s, p, k, stride in sides)
        return height, width

    def sides(self, source: Tensor, size: tuple[int, int]) -> dict[str, int]:
        """The sizes that every kernel from `source` to a result of `size` takes."""
        return {
            "FROM_H": source.shape[2], "FROM_W": source.shape[3],
            "TO_H": size[0], "TO_W": size[1], "KERNEL": self.kernel[1],
            "STRIDE_H": self.stride[0], "STRIDE_W": self.stride[1],
            "PAD_H": self.padding[0], "PAD_W": self.padding[1],
        }  # fmt: skip


def pair(value: Any) -> tuple[int, int]:
    """A size that torch accepts as one number for both sides, or as one for each."""
    if isinstance(value, int):
        return value, value
    height, width = value if len(value) == 2 else (*value, *value)
    return height, width


def geometry_of(weight: Tensor, stride: Any, padding: Any) -> Geometry:
    """The geometry of a convolution with filters `[N, O, C, kh, kw]`."""
    n, outputs, inputs, height, width = weight.shape
    return Geometry(n, inputs, outputs, (height, width), pair(stride), pair(padding))


def gather(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    size: tuple[int, int],
    g: Geometry,
    backward: bool,
    *,
    relu: bool = False,
    signs: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """Run the kernel over all positions of a result of `size`; weight `[N, taps, in, out]`.

    The kernel then applies relu with `relu`, sets the result to 0 where `signs` is not positive,
    and adds `added`; both have the shape of the result.
    """
    batch = source.shape[0]
    inputs = weight.shape[2]
    outputs = weight.shape[3]
    shape = (batch, g.n * outputs, *size)
    result = torch.empty(
        shape, dtype=source.dtype, device=source.device, memory_format=torch.channels_last
    )
    bias = None if bias is None else bias.contiguous()  # it may be a view of another tensor
    usual = Tile(inner=32 if inputs <= 32 else 64)  # several taps at a time for narrow layers
    tile = TILES.get((inputs, outputs), usual).fitted(size, g.stride)
    entries = math.prod(tile.window(g.kernel)) * inputs
    patch = math.prod(tile.patch)
    inner = min(tile.inner, _block(entries))
    columns = min(tile.columns, _block(patch * outputs))
    patches = batch * size[0] * size[1] // patch
    blocks = math.ceil(patches / (tile.rows * tile.span))
    across = math.ceil(patch * outputs / columns)
    kernels.gather[tile.grid(blocks, g.n, across)](
        source, weight, *(result if t is None else t for t in (bias, signs, added)), result,
        patches, N=g.n, TAPS=g.taps, IN=inputs, OUT=outputs, **g.sides(source, size),
        BACKWARD=backward, HAS_BIAS=bias is not None,
        RELU=relu, HAS_SIGNS=signs is not None, HAS_ADDED=added is not None,
        PRECISION=g.precision, HIGH=tile.patch[0], WIDE=tile.patch[1], TOGETHER=tile.together,
        SPAN=tile.span, ROWS=tile.rows, INNER=inner, COLUMNS=columns,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return result


def filter_gradients(
    source: Tensor, slope: Tensor, weight: Tensor, g: Geometry
) -> tuple[Tensor, Tensor]:
    """The gradients of weight `[N, O, C, kh, kw]` and bias `[N, O]`, summed in float32."""
    size = (slope.shape[2], slope.shape[3])
    usual = Tile(rows=64, inner=256)
    tile = FILTER_TILES.get((g.inputs, g.outputs), usual).fitted(size, g.stride)
    high, wide = tile.patch
    height, width = g.kernel
    window = tile.window(g.kernel)
    entries = math.prod(window) * g.inputs
    outputs = high * wide * g.outputs
    patches = source.shape[0] * size[0] * size[1] // (high * wide)
    inner = min(tile.inner, _block(entries))
    columns = min(tile.columns, _block(outputs))
    tiles = math.ceil(entries / inner) * math.ceil(outputs / columns)
    parts = max(1, min(PROGRAMS // (g.n * tiles), patches // (8 * tile.rows)))
    share = tile.rows * math.ceil(patches / parts / tile.rows)
    result = torch.empty(
        (parts, g.n, entries + 1, outputs), dtype=torch.float32, device=source.device
    )
    kernels.filters[tile.grid(parts, g.n, tiles)](
        source, slope, result, patches,
        N=g.n, TAPS=g.taps, IN=g.inputs, OUT=g.outputs, **g.sides(source, size),
        SHARE=share, PRECISION=g.precision, HIGH=high, WIDE=wide, TOGETHER=tile.together,
        ROWS=tile.rows, INNER=inner, COLUMNS=columns,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    total = result.sum(0)
    # the part of the window under the filter, for each position in the patch
    each = total[:, :-1].view(g.n, *window, g.inputs, high, wide, g.outputs)
    places = product(range(high), range(wide))
    parts_of_patches = (each[:, h : h + height, w : w + width, :, h, w] for h, w in places)
    of_weight = reduce(add, parts_of_patches).permute(0, 4, 3, 1, 2)
    of_bias = total[:, -1].view(g.n, -1, g.outputs).sum(1)
    return of_weight.to(weight.dtype), of_bias.to(weight.dtype)


def _block(size: int) -> int:
    return max(16, padded(size))  # the smallest size of tl.dot


class GroupedConvolution(torch.autograd.Function):
    """x `[B, N*C, H, W]`, channels-last; weight `[N, O, C, kh, kw]`; bias `[N, O]` or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = g
        filters = laid_out(weight, (0, 3, 4, 2, 1), x.dtype)
        size = g.result((x.shape[2], x.shape[3]))
        return gather(x, filters, bias, size, g, False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slope = grads[0].contiguous(memory_format=torch.channels_last)
        x, weight = ctx.saved_tensors
        g: Geometry = ctx.geometry
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        if wants_weight or wants_bias:
            grad_weight, grad_bias = filter_gradients(x, slope, weight, g)
        if wants_x:
            filters = laid_out(weight, (0, 3, 4, 1, 2), x.dtype)
            size = x.shape[2], x.shape[3]
            grad_x = gather(slope, filters, None, size, g, True)
        return grad_x, grad_weight, grad_bias if wants_bias else None, None


def laid_out(weight: Tensor, order: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Filters `[N, taps, in, out]` for `gather`, cast and copied in one kernel."""
    filters = weight.permute(order)
    return (
        torch.empty(filters.shape, dtype=dtype, device=weight.device).copy_(filters).flatten(1, 2)
    )


def _autocast_dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def autocast(x: Tensor) -> Tensor:
    """x in the precision of autocast, if it is enabled."""
    return x.to(_autocast_dtype(x))


def can_group(x: Tensor, padding: Any, dilation: Any) -> bool:
    """Whether the kernels apply: in reduced precision, for exact float32 is left to cuDNN."""
    reduced = torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    dtype = _autocast_dtype(x)
    return (
        runs_on(x)
        and (dtype is torch.bfloat16 or (reduced and dtype is torch.float32))
        and not isinstance(padding, str)
        and pair(dilation) == (1, 1)
    )


def grouped_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any
) -> Tensor:
    """`F.conv2d` of N networks on `[B, N*C, H, W]`: `[B, N*O, H', W']`, channels-last."""
    x = autocast(x).contiguous(memory_format=torch.channels_last)
    return GroupedConvolution.apply(x, weight, bias, geometry_of(weight, stride, padding))
