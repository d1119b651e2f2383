"""Replacements of torch's functions for networks that run for all particles at once.

A network's own `forward` runs under `torch.vmap`. Inside, a torch-function mode replaces Linear,
Conv2d, pooling, BatchNorm and attention by rules written for a particle axis, dropout by noise
keyed on the particle, and recurrent layers, which `vmap` does not support, by a loop; everything
else is left to `vmap`. The results are the same either way. Dropout's noise is keyed on (seed,
draw, particle), whatever the other particles; attention is replaced also because it drops weights.

N convolutional networks are one wide network whose groups of channels are particles. Activations
are `[B, N*C, H, W]`, on a GPU channels-last, from layer to layer: a convolution is one grouped
convolution, and functions of single channels (pooling, batch normalisation) work unchanged.
`[B, N, C, H, W]` is a view of the same memory, so `vmap` sees a particle axis without a copy.
"""

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import (
    _add_batch_dim,
    _unwrap_batched,
    is_batchedtensor,
    maybe_current_level,
    pop_dynamic_layer_stack,
    push_dynamic_layer_stack,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from . import random
from .initialization import seeded
from .linear import batched_linear


def _with_particle_axis(rule: Callable[..., Any], *args: Any) -> Any:
    """Call `rule(n, dims, *args)` outside of `vmap`, on tensors with an explicit N axis.

    `rule` returns its result, a tensor or a tree of them, and the particle axis in it; or
    NotImplemented. The vmap rule of an `autograd.Function` would do the same in ten times the time.
    """
    level = maybe_current_level()
    assert level is not None  # an ensemble's forward pass is a vmap
    n = 0
    values = []
    dims = []
    for arg in args:
        value, dim = _unwrap_batched(arg, level) if isinstance(arg, Tensor) else (arg, None)
        values.append(value)
        dims.append(dim)
        if dim is not None:
            n = value.shape[dim]
    stack = pop_dynamic_layer_stack()
    try:
        answer = rule(n, tuple(dims), *values)
    finally:
        push_dynamic_layer_stack(stack)
    if answer is NotImplemented:
        return NotImplemented
    result, axis = answer
    if isinstance(result, Tensor):
        return _add_batch_dim(result, axis, level)
    return tree_map(lambda tensor: _add_batch_dim(tensor, axis, level), result)


def _stacked(*tensors: Tensor | None) -> bool:
    """Whether every tensor has a particle axis; None counts as if it had."""
    return all([tensor is None or is_batchedtensor(tensor) for tensor in tensors])


def _leading(tensor: Any, dim: int | None) -> Any:
    """Move the particle axis to the front; the same object if it is there already, because a
    layer's step finds its parameter by identity."""
    return tensor.movedim(dim, 0) if dim else tensor


def _merged(x: Tensor, dim: int | None, n: int) -> Tensor:
    """Particles into channels: `[B, C, ...]` with a particle axis at `dim` to `[B, N*C, ...]`."""
    x = x.unsqueeze(1).expand(-1, n, *[-1] * (x.dim() - 1)) if dim is None else x.movedim(dim, 1)
    return x.flatten(1, 2)


def _split(x: Tensor, n: int) -> tuple[Tensor, int]:
    """Channels into particles: `[B, N*C, ...]` to a view `[B, N, C, ...]`, and its axis, 1."""
    return x.unflatten(1, (n, -1)), 1


_REGISTERED: dict[Any, list[Callable[..., Any]]] = {}


def register(function: Callable[..., Any], rule: Callable[..., Any]) -> None:
    """Compute a function for all particles at once: by a kernel of your own, for example.

    In an ensemble's forward pass a call `function(*args, **kwargs)` with a tensor that differs
    between particles becomes

        rule(n, dims, *args, **kwargs) -> (result, axis), or NotImplemented

    outside of `torch.vmap`. `dims[i]` is the axis of `args[i]` that counts its `n` particles, or
    None where all particles share `args[i]`; `axis` is the particles' axis in the result, a tensor
    or a tree of them. A rule must compute what `function` does for each particle alone, with its
    gradients. After NotImplemented the rule registered before it is asked, then the ensemble's own,
    then `torch.vmap`. No rule sees a call that names such a tensor (`weight=w`), nor one inside a
    network's own `vmap` or `grad`.

    A function of your own must call `torch.overrides.handle_torch_function` to be seen here, as
    torch's functions do.

    >>> import torch, orderless as ol
    >>> def silu_of_all(n, dims, x):  # elementwise: the same call, and the axis stays
    ...     return torch.nn.functional.silu(x), dims[0]
    >>> ol.ensemble.rules.register(torch.nn.functional.silu, silu_of_all)
    """
    _REGISTERED.setdefault(function, []).insert(0, rule)


def _by_a_registered_rule(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of the first rule that does not decline, or NotImplemented."""
    differs = [isinstance(arg, Tensor) and is_batchedtensor(arg) for arg in args]
    named = [isinstance(arg, Tensor) and is_batchedtensor(arg) for arg in kwargs.values()]
    if not any(differs) or any(named):
        return NotImplemented
    for rule in _REGISTERED[function]:
        result = _with_particle_axis(partial(rule, **kwargs), *args)
        if result is not NotImplemented:
            return result
    return NotImplemented


class ParticleRules(TorchFunctionMode):
    """The mode. `keys(stream)` returns this particle's random key."""

    def __init__(self, keys: Callable[[int], Tensor]) -> None:
        super().__init__()
        self._keys = keys
        self._level = maybe_current_level()
        # Other rules do not support another transform of torch.func around this one.
        self._batched = self._level == 1
        self.rules = ALL if self._batched else NEEDED
        self.drawn = 0  # random tensors drawn in this forward pass

    def next_key(self) -> Tensor:
        self.drawn += 1
        return self._keys(self.drawn)

    def attend(self, *args: Any, **kwargs: Any) -> Tensor:
        """`F.scaled_dot_product_attention`."""
        at_our_level = self._batched and maybe_current_level() == self._level
        attention = _attention if at_our_level else F.scaled_dot_product_attention
        return attention(*args, **kwargs)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = self.rules.get(func)
        registered = self._batched and func in _REGISTERED
        if rule is None and not registered:
            return func(*args, **kwargs)
        # Inside a network's own vmap or grad the innermost axis is not the particles'.
        if (registered or func in AT_OUR_LEVEL) and maybe_current_level() != self._level:
            return func(*args, **kwargs)
        if registered:
            result = _by_a_registered_rule(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs) if rule is None else rule(self, *args, **kwargs)


def _linear(
    mode: ParticleRules, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    castable = input.dtype == weight.dtype or torch.is_autocast_enabled(input.device.type)
    stacked = is_batchedtensor(weight) and (bias is None or is_batchedtensor(bias))
    if not stacked or weight.dim() != 2 or not castable:
        return F.linear(input, weight, bias)
    if input.shape[-1] != weight.shape[-1]:
        shape, width = list(input.shape), weight.shape[-1]
        raise RuntimeError(f"a Linear layer takes inputs of {width} values, got shape {shape}")
    return _with_particle_axis(_linear_rule, input, weight, bias)  # type: ignore[no-any-return]


def _linear_rule(n: int, dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    kind = x.device.type
    autocast = torch.is_autocast_enabled(kind)
    if autocast:
        x = x.to(torch.get_autocast_dtype(kind))
    x = x.expand(n, *x.shape) if dims[0] is None else _leading(x, dims[0])
    stacks = _leading(weight, dims[1]), _leading(bias, dims[2])
    if not autocast:
        return batched_linear(x, *stacks), 0
    with torch.autocast(kind, enabled=False):
        return batched_linear(x, *stacks), 0


def _conv2d(
    mode: ParticleRules,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if not is_batchedtensor(weight) or not _stacked(bias) or input.dim() != 4:
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)

    def rule(n: int, dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        weight, bias = _leading(weight, dims[1]), _leading(bias, dims[2])
        # With the same images for all particles the filters are simply concatenated.
        shared = dims[0] is None and groups == 1
        wide = x if shared else _merged(x, dims[0], n)
        if wide.device.type == "cuda":
            wide = wide.contiguous(memory_format=torch.channels_last)
        filters, offsets = weight.flatten(0, 1), None if bias is None else bias.flatten()
        count = 1 if shared else n * groups
        return _split(F.conv2d(wide, filters, offsets, stride, padding, dilation, count), n)

    return _with_particle_axis(rule, input, weight, bias)


def _batch_norm(
    mode: ParticleRules,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *rest: Any,
    **kwargs: Any,
) -> Tensor:
    """The running statistics `[N, C]` are updated in place, each by its own particle's batch."""
    stacked = running_mean, running_var, weight, bias
    if not is_batchedtensor(input) or not _stacked(*stacked):
        return F.batch_norm(input, *stacked, *rest, **kwargs)

    def rule(n: int, dims: Any, x: Tensor, *stacked: Tensor | None) -> Any:
        tensors = [_leading(tensor, dim) for tensor, dim in zip(stacked, dims[1:], strict=True)]
        flat: Any = [None if tensor is None else tensor.flatten() for tensor in tensors]
        return _split(F.batch_norm(_merged(x, dims[0], n), *flat, *rest, **kwargs), n)

    return _with_particle_axis(rule, input, *stacked)


def _channelwise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The rule of a function of single channels."""

    def apply(mode: ParticleRules, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not is_batchedtensor(input) or input.dim() != 4 or kwargs.get("return_indices"):
            return function(input, *args, **kwargs)

        def rule(n: int, dims: Any, x: Tensor) -> Any:
            return _split(function(_merged(x, dims[0], n), *args, **kwargs), n)

        return _with_particle_axis(rule, input)

    return apply


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **options: Any
) -> Tensor:
    """All particles as one larger batch of `[B, heads, length, size]`, which has fast kernels."""
    lead = query.shape[:-2]
    equal = lead == key.shape[:-2] == value.shape[:-2]
    if not _stacked(query, key, value) or not equal or options.get("enable_gqa"):
        return F.scaled_dot_product_attention(query, key, value, mask, **options)

    def rule(n: int, dims: Any, *tensors: Tensor | None) -> Any:
        q, k, v, mask = (_leading(tensor, dim) for tensor, dim in zip(tensors, dims, strict=True))
        if mask is not None and (mask.dim() > 2 or dims[3] is not None):
            own = mask if dims[3] is not None else mask.unsqueeze(0)
            own = own[(slice(None), *(None,) * (q.dim() - own.dim()))]
            mask = own.expand(n, *lead, *mask.shape[-2:])
            mask = mask.reshape(-1, *mask.shape[-3:])
        q, k, v = (tensor.reshape(-1, *tensor.shape[-3:]) for tensor in (q, k, v))
        result = F.scaled_dot_product_attention(q, k, v, mask, **options)
        return result.reshape(n, *lead, *result.shape[-2:]), 0

    return _with_particle_axis(rule, query, key, value, mask)


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for functions that `vmap` cannot batch: call it per particle, stack the results."""

    def apply(mode: object, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_flatten((args, kwargs))
        if not any(isinstance(leaf, Tensor) and is_batchedtensor(leaf) for leaf in leaves):
            return function(*args, **kwargs)

        def rule(n: int, dims: Any, *leaves: Any) -> Any:
            results = []
            for i in range(n):
                pairs = zip(leaves, dims, strict=True)
                own = [leaf if dim is None else leaf.select(dim, i) for leaf, dim in pairs]
                own_args, own_kwargs = tree_unflatten(own, tree)
                results.append(function(*own_args, **own_kwargs))
            return tree_map(lambda *parts: torch.stack(parts), *results), 0

        return _with_particle_axis(rule, *leaves)

    return apply


def _recurrent(function: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of recurrent layers: one by one, with keyed noise if they drop units themselves."""
    plain = one_by_one(function)

    def apply(mode: ParticleRules, *args: Any, **kwargs: Any) -> Any:
        place = next(place for place, arg in enumerate(args) if isinstance(arg, float))
        dropout, training = args[place : place + 2]
        if not (training and dropout > 0.0):
            return plain(mode, *args, **kwargs)

        def keyed(key: Tensor, *args: Any) -> Any:
            with seeded("dropout", int(key)):  # torch has no other way to choose its noise
                return function(*args, **kwargs)

        return one_by_one(keyed)(mode, mode.next_key(), *args)

    return apply


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


Rules = dict[Any, Callable[..., Any]]
FAST: Rules = {
    F.linear: _linear,
    F.conv2d: _conv2d,
    F.batch_norm: _batch_norm,
    F.max_pool2d: _channelwise(F.max_pool2d),
    F.avg_pool2d: _channelwise(F.avg_pool2d),
    F.adaptive_avg_pool2d: _channelwise(F.adaptive_avg_pool2d),
    F.adaptive_max_pool2d: _channelwise(F.adaptive_max_pool2d),
}
LAYERS = torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu
CELLS = torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell
RECURRENT: Rules = {
    **{function: _recurrent(function) for function in LAYERS},
    **{function: one_by_one(function) for function in CELLS},
}
DROPOUT: Rules = {
    F.dropout: _dropout,
    F.dropout1d: _by_channel(_dropout, alone=2),
    F.dropout2d: _by_channel(_dropout),
    F.dropout3d: _by_channel(_dropout, alone=4),
    F.alpha_dropout: _alpha_dropout,
    F.feature_alpha_dropout: _by_channel(_alpha_dropout),
    F.scaled_dot_product_attention: _scaled_dot_product_attention,
    F.multi_head_attention_forward: _multi_head_attention,
}
NEEDED: Rules = {**DROPOUT, **RECURRENT}  # `vmap` has no others
ALL: Rules = {**NEEDED, **FAST}
AT_OUR_LEVEL = {*FAST, *RECURRENT}
