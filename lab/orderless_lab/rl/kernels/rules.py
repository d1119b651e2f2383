"""The kernels' rules of an ensemble: where a kernel applies, and how its tensors are laid out.

Activations of N networks are `[B, N*C, H, W]` from layer to layer, channels-last, and `vmap` sees
the view `[B, N, C, H, W]` of the same memory.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from orderless.ensemble.rules import register

from .grouped import can_group, grouped_convolution
from .pooling import can_pool, max_pool
from .residual import can_fuse, residual_blocks
from .shared import can_share, shared_convolution


def side_by_side(x: Tensor, dim: int) -> Tensor:
    """Particles into channels: `[B, C, H, W]` with a particle axis at `dim` to `[B, N*C, H, W]`."""
    return x.movedim(dim, 1).flatten(1, 2)


def one_by_one(x: Tensor, n: int) -> tuple[Tensor, int]:
    """Channels into particles: `[B, N*C, H, W]` to a view `[B, N, C, H, W]`, and its axis, 1."""
    return x.unflatten(1, (n, -1)), 1


def convolution(
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
    bias = None if of_bias is None or bias is None else bias.movedim(of_bias, 0)
    if of_x is None:
        if not can_share(x, weight, padding, dilation):
            return NotImplemented
        return one_by_one(shared_convolution(x, weight, bias, stride, padding), n)
    if not can_group(x, padding, dilation):
        return NotImplemented
    wide = side_by_side(x, of_x)
    return one_by_one(grouped_convolution(wide, weight, bias, stride, padding), n)


def pooling(n: int, dims: Any, x: Tensor, *options: Any, **more: Any) -> Any:
    """The rule of `F.max_pool2d`."""
    if x.dim() != 5:
        return NotImplemented
    wide = side_by_side(x, dims[0])
    if not can_pool(wide, *options, **more):
        return NotImplemented
    return one_by_one(max_pool(wide, *options, **more), n)


def residual_update(x: Tensor, first: nn.Conv2d, second: nn.Conv2d) -> Tensor | None:
    """x + second(relu(first(relu(x)))) in two kernels, or None where they do not apply.

    They do in an ensemble on a GPU, for layers that keep the size and have no hooks.
    """
    layers = first, second
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
    if hooked or not can_fuse(first, second):
        return None
    return _residual_update(x, first.weight, first.bias, second.weight, second.bias)


def _residual_update(x: Tensor, *parameters: Tensor | None) -> Tensor | None:
    if has_torch_function_unary(x):  # an ensemble's rule is asked
        return handle_torch_function(_residual_update, (x,), x, *parameters)
    return None


def residual(n: int, dims: Any, x: Tensor, *parameters: Tensor | None) -> Any:
    """The rule of `_residual_update`."""
    if any(dim is None for dim in dims) or x.dim() != 5 or not can_group(x, 0, 1):
        return NotImplemented
    axes = zip(parameters, dims[1:], strict=True)
    stacked = [tensor.movedim(dim, 0) for tensor, dim in axes if tensor is not None]
    return one_by_one(residual_blocks(side_by_side(x, dims[0]), *stacked), n)


register(F.conv2d, convolution)
register(F.max_pool2d, pooling)
register(_residual_update, residual)
