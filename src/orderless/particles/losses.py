"""From a loss for one network to one loss per particle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from . import fused


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
        if loss is F.cross_entropy and in_dims is None and not options and len(rest) == 1:
            fast = _cross_entropy(outputs, *rest)
            if fast is not None:
                return fast
        dims = (0,) + (None,) * len(rest) if in_dims is None else in_dims
        outputs = tree_map(_full_precision, outputs)
        with torch.autocast(_device_type(outputs), enabled=False):
            return torch.vmap(lambda *args: loss(*args, **options), in_dims=dims)(outputs, *rest)

    return losses


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor | None:
    """`F.cross_entropy` of all particles in one call: the loss that nearly everybody uses."""
    if outputs.dim() != 3 or labels.dim() != 1 or labels.dtype != torch.long:
        return None
    outputs, n = _full_precision(outputs), outputs.shape[0]
    if fused.can_cross_entropy(outputs, labels):
        return fused.CrossEntropy.apply(outputs, labels)
    with torch.autocast(outputs.device.type, enabled=False):
        losses = F.cross_entropy(outputs.flatten(0, 1), labels.repeat(n), reduction="none")
    return losses.view(n, -1).sum(1) / (labels != -100).sum()  # torch ignores the label -100


def _device_type(outputs: Any) -> str:
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return next((leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)), "cpu")
