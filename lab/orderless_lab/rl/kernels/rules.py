"""The kernels' rules of an ensemble: where a kernel applies, and how its tensors are laid out.

Activations of N networks are `[B, N*C, H, W]` from layer to layer, channels-last, and `vmap` sees
the view `[B, N, C, H, W]` of the same memory.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from orderless.ensemble.rules import register

from .convolution import both, can_convolve, convolution
from .pooling import can_pool, max_pool


def side_by_side(x: Tensor, dim: int) -> Tensor:
    """Particles into channels: `[B, C, H, W]` with a particle axis at `dim` to `[B, N*C, H, W]`."""
    return x.movedim(dim, 1).flatten(1, 2)


def one_by_one(x: Tensor, n: int) -> tuple[Tensor, int]:
    """Channels into particles: `[B, N*C, H, W]` to a view `[B, N, C, H, W]`, and its axis, 1."""
    return x.unflatten(1, (n, -1)), 1


def convolution_rule(
    n: int,
    dims: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """The rule of `F.conv2d`."""
    of_x, of_weight = dims[:2]
    of_bias = dims[2] if len(dims) > 2 else None
    stacked = of_weight is not None and (bias is None or of_bias is not None)
    images = x.dim() == (4 if of_x is None else 5)
    if not stacked or not images or groups != 1:
        return NotImplemented
    weight = weight.movedim(of_weight, 0)
    bias = None if bias is None or of_bias is None else bias.movedim(of_bias, 0)
    if not can_convolve(x, weight, stride, padding, dilation):
        return NotImplemented
    if of_x is not None:
        return one_by_one(convolution(side_by_side(x, of_x), weight, bias), n)
    if x.requires_grad:
        return NotImplemented
    # networks that share their images are one network with N*O outputs
    wide = weight.flatten(0, 1).unsqueeze(0)
    return one_by_one(convolution(x, wide, None if bias is None else bias.reshape(1, -1)), n)


def pooling_rule(
    n: int,
    dims: Any,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The rule of `F.max_pool2d`."""
    if x.dim() != 5 or both(dilation) != (1, 1) or ceil_mode or return_indices:
        return NotImplemented
    wide = side_by_side(x, dims[0])
    if not can_pool(wide, kernel_size, stride, padding):
        return NotImplemented
    return one_by_one(max_pool(wide), n)


register(F.conv2d, convolution_rule)
register(F.max_pool2d, pooling_rule)
