"""From a loss for one network to one loss per particle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


def _full_precision(value: Any) -> Any:
    """Losses are sums that decide between particles: never in half precision."""
    if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16):
        return value.float()
    return value


def per_particle(
    loss: Callable[..., Tensor], in_dims: int | tuple[int | None, ...] | None = None
) -> Callable[..., Tensor]:
    """Turn `loss(output, *rest) -> scalar` into `(outputs [N, ...], *rest) -> [N]`.

    The outputs differ per particle and everything else (targets) is shared, unless `in_dims`
    says otherwise in the manner of `torch.vmap`. Half-precision outputs are read as float32.

    >>> losses = per_particle(torch.nn.functional.cross_entropy)
    >>> losses(torch.zeros(3, 8, 2), torch.zeros(8, dtype=torch.long)).shape
    torch.Size([3])
    """

    def losses(outputs: Any, *rest: Any, **options: Any) -> Tensor:
        dims = (0,) + (None,) * len(rest) if in_dims is None else in_dims
        outputs = tree_map(_full_precision, outputs)
        with torch.autocast(_device_type(outputs), enabled=False):
            return torch.vmap(lambda *args: loss(*args, **options), in_dims=dims)(outputs, *rest)

    return losses


def _device_type(outputs: Any) -> str:
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return next((leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)), "cpu")
