"""What replaces torch's functions while a network runs for all particles at once.

A network's own `forward` runs under `torch.vmap`. Inside, a torch-function mode hands Linear,
Conv2d, pooling and BatchNorm to rules written for a particle axis, and dropout to noise keyed on
the particle; everything else goes to `vmap` as it is. The results are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.overrides import TorchFunctionMode

from . import channels, random
from .linear import FactoredUpdate, batched_linear


class _WithParticleAxis(torch.autograd.Function):
    """The bridge into `vmap`: calls `rule(n, dims, *args)` on tensors that show their N axis."""

    @staticmethod
    def forward(rule: Callable[..., Any], *args: Any) -> Any:
        raise RuntimeError("a particle rule was called outside of an ensemble's forward pass")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, rule: Callable[..., Any], *args: Any) -> Any:
        return rule(info.batch_size, in_dims[1:], *args)


def _stacked(*tensors: Tensor | None) -> bool:
    """Whether every given tensor carries a particle axis (and none is None-free of meaning)."""
    return all(tensor is None or is_batchedtensor(tensor) for tensor in tensors)


class ParticleRules(TorchFunctionMode):
    """The mode. `keys(stream)` gives this particle's random key, `update` a pending step or None."""

    def __init__(
        self,
        keys: Callable[[int], Tensor],
        update: FactoredUpdate | None = None,
        fast: bool = True,
    ) -> None:
        super().__init__()
        self._keys = keys
        self.update = update
        self.rules = {**DROPOUT, **FAST} if fast else DROPOUT
        self.drawn = 0  # how many random tensors this forward pass has asked for

    def next_key(self) -> Tensor:
        self.drawn += 1
        return self._keys(self.drawn)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        rule = self.rules.get(func)
        kwargs = kwargs or {}
        return func(*args, **kwargs) if rule is None else rule(self, *args, **kwargs)


def _linear(mode: ParticleRules, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not is_batchedtensor(weight) or not _stacked(bias):
        return F.linear(x, weight, bias)

    def rule(n: int, dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        x = x.expand(n, *x.shape) if dims[0] is None else x.movedim(dims[0], 0)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        with torch.autocast(x.device.type, enabled=False):
            return batched_linear(x, weight, bias, mode.update), 0

    return _WithParticleAxis.apply(rule, x, weight, bias)


def _conv2d(
    mode: ParticleRules, x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **kw: Any
) -> Tensor:
    if not is_batchedtensor(weight) or not _stacked(bias) or x.dim() != 4:
        return F.conv2d(x, weight, bias, *rest, **kw)

    def rule(n: int, dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        return channels.convolution(x, dims[0], weight, bias, *rest, **kw), 1

    return _WithParticleAxis.apply(rule, x, weight, bias)


def _batch_norm(
    mode: ParticleRules,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    stacked = running_mean, running_var, weight, bias
    options = training, momentum, eps
    if not is_batchedtensor(x) or not _stacked(*stacked):
        return F.batch_norm(x, *stacked, *options)

    def rule(n: int, dims: Any, x: Tensor, *stacked: Tensor | None) -> Any:
        return channels.batch_norm(n, x, dims[0], list(stacked), *options), 1

    return _WithParticleAxis.apply(rule, x, *stacked)


def _channelwise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(mode: ParticleRules, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not is_batchedtensor(x) or x.dim() != 4 or kwargs.get("return_indices"):
            return function(x, *args, **kwargs)

        def rule(n: int, dims: Any, x: Tensor) -> Any:
            return channels.channelwise(function, n, x, dims[0], *args, **kwargs), 1

        return _WithParticleAxis.apply(rule, x)

    return apply


def _dropout(
    mode: ParticleRules,
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    if not training or p == 0.0:
        return x
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a dropout probability must lie in [0, 1], got {p}")
    kept = random.uniform(mode.next_key(), shape or tuple(x.shape)) >= p
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    mask = kept.to(x.dtype) * scale
    return x.mul_(mask) if inplace else x * mask


def _channel_dropout(dims: int) -> Callable[..., Tensor]:
    """dropout1d/2d/3d drop whole channels: one draw per (sample, channel)."""

    def apply(mode: ParticleRules, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        lead = tuple(x.shape[: x.dim() - dims])
        return _dropout(mode, x, *args, **kwargs, shape=lead + (1,) * dims)

    return apply


Rules = dict[Any, Callable[..., Tensor]]
FAST: Rules = {
    F.linear: _linear,
    F.conv2d: _conv2d,
    F.batch_norm: _batch_norm,
    F.max_pool2d: _channelwise(F.max_pool2d),
    F.avg_pool2d: _channelwise(F.avg_pool2d),
    F.adaptive_avg_pool2d: _channelwise(F.adaptive_avg_pool2d),
    F.adaptive_max_pool2d: _channelwise(F.adaptive_max_pool2d),
}
DROPOUT: Rules = {
    F.dropout: _dropout,
    F.dropout1d: _channel_dropout(1),
    F.dropout2d: _channel_dropout(2),
    F.dropout3d: _channel_dropout(3),
}
