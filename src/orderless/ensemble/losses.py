"""Turn a loss for one network into one loss per particle."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..cuda import fused
from .device import without_autocast
from .rules import one_by_one

_READS_VALUES = ("data-dependent control flow", "calling .item()")  # in vmap's error messages


def _full_precision(value: Any) -> Any:
    """A half-precision tensor as float32, because losses decide between particles."""
    if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16):
        return value.float()
    return value


def per_particle(
    loss: Callable[..., Tensor], in_dims: int | tuple[int | None, ...] | None = None
) -> Callable[..., Tensor]:
    """Turn `loss(output, *rest) -> scalar` into `(outputs [N, ...], *rest) -> [N]`.

    The outputs differ per particle and all other arguments (targets) are shared, unless `in_dims`
    gives their axes as in `torch.vmap`. Half-precision outputs are converted to float32. A loss
    that branches on values, which `vmap` cannot, is computed for one particle after another.

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
        tensors = (leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor))
        device = next((tensor.device.type for tensor in tensors), "cpu")
        with torch.autocast(device, enabled=False):
            alone = partial(loss, **options)
            try:
                return torch.vmap(alone, in_dims=dims)(outputs, *rest)
            except RuntimeError as error:
                if not any(words in str(error) for words in _READS_VALUES):
                    raise
            # such as F.gaussian_nll_loss, which checks its variances
            each = partial(one_by_one(alone), None)
            return torch.vmap(each, in_dims=dims)(outputs, *rest)  # type: ignore[no-any-return]

    return losses


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor | None:
    """`F.cross_entropy` of all particles in one call, the most common loss."""
    labels = labels.long() if labels.dtype == torch.uint8 else labels
    if outputs.dim() != 3 or labels.dtype != torch.long or labels.shape != outputs.shape[1:2]:
        return None
    outputs, n = _full_precision(outputs), outputs.shape[0]
    if outputs.is_cuda and fused.can_cross_entropy(outputs, labels):
        return fused.CrossEntropy.apply(outputs, labels)
    with without_autocast(outputs):
        every = labels.expand(n, -1).flatten()
        losses = F.cross_entropy(outputs.flatten(0, 1), every, reduction="none")
    return losses.view(n, -1).sum(1) / (labels != -100).sum()  # torch ignores the label -100
