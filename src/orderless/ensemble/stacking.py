"""Stack N modules of one architecture into one tree of tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .initialization import refuse_lazy
from .parameter import ParticleParameter


def stack_into(mirror: nn.Module, modules: list[nn.Module]) -> None:
    """Give `mirror` the modules' tree of names, with stacked tensors `[N, ...]` as leaves."""
    # Tied tensors are one tensor under several names, and shared modules one module.
    stacked: dict[int, Tensor] = {}
    holders: dict[int, nn.Module] = {}

    def fill(holder: nn.Module, originals: list[nn.Module]) -> None:
        first = originals[0]
        for name, parameter in first._parameters.items():
            if parameter is not None and id(parameter) not in stacked:
                data = torch.stack([o._parameters[name].detach() for o in originals])  # type: ignore[union-attr]
                stacked[id(parameter)] = ParticleParameter(data, parameter.requires_grad)
            holder._parameters[name] = None if parameter is None else stacked[id(parameter)]  # type: ignore[assignment]
        for name, buffer in first._buffers.items():
            if buffer is not None and id(buffer) not in stacked:
                stacked[id(buffer)] = torch.stack([o._buffers[name] for o in originals])  # type: ignore[misc]
            holder._buffers[name] = None if buffer is None else stacked[id(buffer)]
        holder._non_persistent_buffers_set |= first._non_persistent_buffers_set
        for name, child in first._modules.items():
            if child is not None and id(child) not in holders:
                holders[id(child)] = nn.Module()
                fill(holders[id(child)], [o._modules[name] for o in originals])  # type: ignore[misc]
            holder._modules[name] = None if child is None else holders[id(child)]

    # Write to the registries directly: a network may use any name, even an attribute of the
    # mirror's class.
    fill(mirror, modules)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def places_of(module: nn.Module) -> dict[str, str]:
    """The name of the tensor at every place in a module.

    Tied tensors have one name and several places, a shared module's tensors have one place.
    `functional_call` must fill each place once, or it does not restore the tensors afterwards.
    """
    names = {id(tensor): name for name, tensor in tensors_of(module).items()}
    places = {}
    for prefix, part in module.named_modules():
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                places[f"{prefix}.{name}" if prefix else name] = names[id(tensor)]
    return places


@torch.no_grad()
def clear_values(module: nn.Module) -> None:
    """Fill a module with NaN, so that running it outside of `functional_call` shows.

    `torch.utils.checkpoint` inside a network does so in the backward pass.
    """
    for tensor in tensors_of(module).values():
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.fill_(torch.nan)


def check_stackable(modules: list[nn.Module]) -> None:
    """Raise if the modules cannot be stacked."""
    first = modules[0]
    refuse_lazy(first)
    if len(modules) > 1 and not any(True for _ in first.parameters()):
        raise ValueError(f"{type(first).__name__} has no parameters: N copies would be equal")
    if any(getattr(module, "sparse", False) for module in first.modules()):
        raise ValueError("particles have dense gradients: make every Embedding with sparse=False")
    shapes = {name: tensor.shape for name, tensor in tensors_of(first).items()}
    for number, module in enumerate(modules[1:], 1):
        check_same_shapes(shapes, tensors_of(module), f"module {number} is of another architecture")


def check_same_shapes(shapes: Mapping[str, Sequence[int]], tensors: Any, complaint: str) -> None:
    """Raise if `tensors` is not a dict of tensors with these names and shapes."""
    given = tensors if isinstance(tensors, dict) else {}
    if shapes.keys() != given.keys():
        odd = min(map(str, shapes.keys() ^ given.keys()))
        raise ValueError(f"{complaint}: {odd!r} is not in both")
    for name, tensor in given.items():
        there = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        if there != tuple(shapes[name]):
            here = tuple(shapes[name])
            raise ValueError(f"{complaint}: {name!r} is {there} there and {here} here")
