"""Calls of an ensemble: inputs per particle, chunk after chunk, and what `vmap` cannot do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from .ensemble import Ensemble

Noise = Callable[[Tensor, int], Tensor]  # the random key of a particle's index for a stream


def particle_axes(n: int, args: Any, kwargs: Any, in_dims: Any, per_particle: bool) -> Any:
    """The particle axis of each input, nested like (args, kwargs); None if shared."""
    leaves, tree = pytree.tree_flatten((args, kwargs))
    axes: Any = [0] * len(leaves)
    if in_dims is not None:
        if per_particle:
            raise ValueError("give in_dims or per_particle=True, not both")
        dims = tuple(in_dims) if isinstance(in_dims, (tuple, list)) else (in_dims,) * len(args)
        if len(dims) != len(args):
            raise ValueError(f"in_dims has {len(dims)} entries for {len(args)} inputs")
        axes = pytree._broadcast_to_and_flatten((dims, dict.fromkeys(kwargs)), tree)
        if axes is None:
            raise ValueError(f"in_dims must be nested like the inputs, got {in_dims}")
    return pytree.tree_unflatten(list(map(partial(_axis, n), leaves, axes)), tree)


def _axis(n: int, leaf: Any, dim: Any) -> int | None:
    """The particle axis of an input: `dim`, or None if it is not a tensor."""
    if dim is None or not isinstance(leaf, Tensor):
        return None
    exists = isinstance(dim, int) and -leaf.dim() <= dim < leaf.dim()
    if not exists or leaf.shape[dim] != n:
        raise ValueError(
            f"an input per particle needs {n} entries along axis {dim}, "
            f"got shape {tuple(leaf.shape)}"
        )
    return dim % leaf.dim()


def at_axes(function: Callable[[Tensor, int], Tensor], inputs: Any, axes: Any) -> Any:
    """Replace the inputs per particle by `function(tensor, axis)`; shared ones stay."""
    return tree_map(lambda x, axis: x if axis is None else function(x, axis), inputs, axes)


def refuse_noise(index: Tensor, stream: int) -> Tensor:
    """Instead of a particle's key where a forward pass runs again without knowing its noise."""
    raise RuntimeError(
        "this forward pass draws noise and runs again inside a backward pass "
        "(torch.utils.checkpoint), where it would draw other noise: use "
        "Ensemble(chunk_size=...), which recomputes with the same"
    )


def run_chunks(
    particles: Ensemble,
    noise: Noise,
    evaluating: bool,
    tensors: list[Tensor],
    indices: Tensor,
    inputs: Any,
    axes: Any,
) -> tuple[Any, list[Tensor], int]:
    """Run one chunk after another; the backward pass runs each again with the same noise."""
    size = particles.chunk_size or particles.n
    run: Callable[..., Any] = particles._run_some
    if torch.is_grad_enabled():
        # The state of torch's generators cannot be read while a CUDA graph is recorded.
        recording = particles.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        run = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=not recording)
    # split's backward is one concatenation; slicing would pad every chunk's gradient to N
    parts = [tensor.split(size) for tensor in tensors]
    attributes = _attributes(particles._layers)
    results = []
    start = 0
    for own_indices, *own in zip(indices.split(size), *parts, strict=True):
        # a recomputation must not see the buffers updated
        own[particles._first_buffer :] = [b.clone() for b in own[particles._first_buffer :]]
        chunk = partial(torch.narrow, start=start, length=len(own_indices))
        own_inputs = inputs if axes is None else at_axes(chunk, inputs, axes)
        results.append(run(noise, evaluating, own, own_indices, own_inputs, axes))
        start += len(own_indices)
        if _attributes(particles._layers) != attributes:
            raise RuntimeError(
                "this network keeps a tensor as an attribute between calls, which chunks would "
                "share: register it as a buffer, or use chunk_size=None"
            )
    outputs, buffers, drawn = zip(*results, strict=True)
    joined = tree_map(_joined, *outputs)
    return joined, [torch.cat(part) for part in zip(*buffers, strict=True)], drawn[0]


def _attributes(layers: list[nn.Module]) -> list[tuple[str, int]]:
    """The tensors that layers hold besides parameters and buffers."""
    held = []
    for layer in layers:
        for name, value in vars(layer).items():
            if isinstance(value, Tensor):
                held.append((name, id(value)))
    return held


def _joined(*parts: Any) -> Any:
    return torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0]


def explain(error: RuntimeError, network: nn.Module) -> None:
    """Raise a message about the network for an error of `vmap`."""
    if any(parameter.is_meta for parameter in network.parameters()):
        raise RuntimeError(
            "the particles are on the meta device, which holds no numbers: make them on cpu or cuda"
        ) from error
    first = str(error).split(". ")[0]
    if "vmap" not in first and "Batching rule" not in first:
        return
    why = (
        "its forward pass does what torch.vmap does not, such as a branch on a tensor's value, "
        f".item(), or writing into a tensor that it made ({first})"
    )
    if any(getattr(layer, "momentum", 0.0) is None for layer in network.modules()):
        why = (
            "its BatchNorm has momentum=None (update_bn sets it) and reads a count: give it a "
            "momentum, or update_bn every network = particles[i] and load_particle(i, network)"
        )
    raise RuntimeError(
        f"{type(network).__name__} cannot run for several particles at once: {why}"
    ) from error
