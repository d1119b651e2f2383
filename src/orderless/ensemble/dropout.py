"""Dropout with noise keyed on (seed, draw, particle), whatever the other particles.

Each function replaces torch's of the same name while a network runs for all particles at once;
`mode` provides the particle's random key. The two attention functions are here because they drop
attention weights.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from . import random

if TYPE_CHECKING:
    from .rules import ParticleRules


def _kept(mode: ParticleRules, p: float, shape: tuple[int, ...]) -> Tensor:
    """A mask of the elements that this particle keeps in this draw."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a dropout probability must lie in [0, 1], got {p}")
    return random.uniform(mode.next_key(), shape) >= p


def _dropout(
    mode: ParticleRules,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    if not training or p == 0.0:
        return input
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    mask = _kept(mode, p, shape or tuple(input.shape)).to(input.dtype) * scale
    # an input shared by all particles cannot hold N results
    return input.mul_(mask) if inplace and is_batchedtensor(input) else input * mask


def _alpha_dropout(
    mode: ParticleRules,
    input: Tensor,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    """Set dropped units to SELU's lowest value, then scale and shift to keep mean and variance."""
    if not training or p == 0.0:
        return input
    lowest = -1.7580993408473766
    scale = 0.0 if p == 1.0 else ((1.0 - p) * (1.0 + p * lowest**2)) ** -0.5
    kept = _kept(mode, p, shape or tuple(input.shape))
    result = torch.where(kept, input, lowest) * scale - p * lowest * scale
    return input.copy_(result) if inplace and is_batchedtensor(input) else result


def _by_channel(dropout: Callable[..., Tensor], alone: int | None = None) -> Callable[..., Tensor]:
    """Draw once per (sample, channel); an input of `alone` dimensions is a single sample."""

    def apply(mode: ParticleRules, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        lead = 1 if input.dim() == alone else 2
        shape = tuple(input.shape[:lead]) + (1,) * (input.dim() - lead)
        return dropout(mode, input, *args, **kwargs, shape=shape)

    return apply


def _scaled_dot_product_attention(
    mode: ParticleRules,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    attend = mode.attend
    if dropout_p == 0.0 or options.get("enable_gqa"):
        more = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, **options}
        return attend(query, key, value, attn_mask, **more)
    # With the identity as values, attention returns its weights, to which dropout applies.
    identity = torch.eye(key.shape[-2], dtype=value.dtype, device=value.device)
    identity = identity.expand(*key.shape[:-1], -1)
    weights = attend(query, key, identity, attn_mask, is_causal=is_causal, scale=scale)
    return _dropout(mode, weights, dropout_p) @ value


# torch's function without its first line, which would pass the whole call to the mode: so its parts
# (linear layers, dropout) reach the mode one by one.
_multi_head_attention_in_parts = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def _multi_head_attention(mode: ParticleRules, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return _multi_head_attention_in_parts(*args, **kwargs)


DROPOUT: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    F.dropout1d: _by_channel(_dropout, alone=2),
    F.dropout2d: _by_channel(_dropout),
    F.dropout3d: _by_channel(_dropout, alone=4),
    F.alpha_dropout: _alpha_dropout,
    F.feature_alpha_dropout: _by_channel(_alpha_dropout),
    F.scaled_dot_product_attention: _scaled_dot_product_attention,
    F.multi_head_attention_forward: _multi_head_attention,
}
