"""N convolutional networks as one wide one: particles are groups of channels.

Activations are kept as `[B, N*C, H, W]`, on a GPU channels-last, from layer to layer: a
convolution is one grouped convolution, and whatever acts on each channel by itself (pooling,
batch normalisation) needs no rule beyond "more channels". `[B, N, C, H, W]` is a view of the same
memory, so `vmap` sees a particle axis and nothing is copied in between.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .grouped import can_group, grouped_convolution
from .shared import can_share, shared_convolution


def merge(x: Tensor, dim: int | None, n: int) -> Tensor:
    """Particles into channels: `[B, C, ...]` with a particle axis at `dim` to `[B, N*C, ...]`."""
    x = x.unsqueeze(1).expand(-1, n, *[-1] * (x.dim() - 1)) if dim is None else x.movedim(dim, 1)
    return x.flatten(1, 2)


def split(x: Tensor, n: int) -> Tensor:
    """Back to a particle axis, at 1: `[B, N*C, ...]` to `[B, N, C, ...]`, a view."""
    return x.unflatten(1, (n, -1))


def convolution(
    x: Tensor,
    dim: int | None,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`F.conv2d` for N networks: weight `[N, O, C/groups, kh, kw]`, result `[B, N, O, H, W]`.

    When all particles look at the same images (`dim` None, an ungrouped first layer) their filters
    stand side by side: in one product where `shared.py` can take it, else in an ordinary
    convolution.
    """
    n = weight.shape[0]
    shared = dim is None and groups == 1
    if shared and can_share(x, weight, padding, dilation):
        return split(shared_convolution(x, weight, bias, stride, padding), n)
    wide = x if shared else merge(x, dim, n)
    if groups == 1 and not shared and can_group(wide, padding, dilation):
        return split(grouped_convolution(wide, weight, bias, stride, padding), n)
    if wide.device.type == "cuda":
        wide = wide.contiguous(memory_format=torch.channels_last)
    y = F.conv2d(
        wide,
        weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        stride,
        padding,
        dilation,
        1 if shared else n * groups,
    )
    return split(y, n)


def channelwise(
    function: Callable[..., Tensor], n: int, x: Tensor, dim: int | None, *args: Any, **kwargs: Any
) -> Tensor:
    """Any function of single channels over all N networks: result `[B, N, C, ...]`."""
    return split(function(merge(x, dim, n), *args, **kwargs), n)


def batch_norm(
    n: int, x: Tensor, dim: int | None, stacked: list[Tensor | None], *args: Any
) -> Tensor:
    """`F.batch_norm`; `stacked` holds running mean, running variance, weight, bias `[N, C]`.

    The running statistics are updated in place, each particle's by its own batch statistics.
    """
    flat = [None if tensor is None else tensor.flatten() for tensor in stacked]
    return channelwise(F.batch_norm, n, x, dim, *flat, *args)
