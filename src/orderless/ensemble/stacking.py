"""Tensors of N networks as one, and N modules of one architecture as one module."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from .initialization import refuse_lazy


class ParticleParameter(nn.Parameter):
    """One tensor of every particle, stacked: shape `[N, ...]`.

    The type tells a per-particle reduction (clipping, TRAC) that axis 0 counts networks.
    `nn.Parameter.__deepcopy__` and pickle keep the type.

    >>> import orderless as ol
    >>> particles = ol.Ensemble(lambda: nn.Linear(3, 2), n=5)
    >>> particles.get_parameter("weight").n_particles
    5
    """

    descent: Any = None  # set during a backward pass that takes the step itself

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return ParticleParameter, (self.data, self.requires_grad)

    @property
    def n_particles(self) -> int:
        return self.shape[0]


def per_particle_view(values: Tensor, like: Tensor) -> Tensor:
    """Shape `[N]` values so that they broadcast against a `[N, ...]` tensor."""
    return values.view(-1, *[1] * (like.dim() - 1))


def squared_norms(tensors: list[Tensor]) -> Tensor:
    """Each particle's squared norm over several `[N, ...]` tensors: `[N]`."""
    flat = [tensor.reshape(len(tensor), -1) for tensor in tensors]
    return torch.stack([torch.linalg.vector_norm(t, dim=1) for t in flat]).square().sum(0)


def inner_products(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Each particle's inner product over pairs of `[N, ...]` tensors: `[N]`, in float64."""
    products = [a.double() * b.double() for a, b in zip(left, right, strict=True)]
    return torch.stack([product.reshape(len(product), -1).sum(1) for product in products]).sum(0)


def stacked(modules: Sequence[nn.Module]) -> nn.Module:
    """A copy of the first module whose parameters and buffers are those of all, `[N, ...]`.

    Tied tensors stay tied, shared modules shared, and layers keep their modes.
    """
    others = [tensors_of(module) for module in modules]
    values = {
        name: torch.stack([tensors[name].detach() for tensors in others]) for name in others[0]
    }
    network = _with_tensors(modules[0], values, ParticleParameter)
    for layer in network.modules():
        if isinstance(layer, nn.RNNBase):
            # cuDNN's layout of one network's weights is of no use to stacked ones
            layer.flatten_parameters = _stay  # type: ignore[method-assign]
    return network


def particle_of(network: nn.Module, index: int) -> nn.Module:
    """Particle `index` of a stacked network as an ordinary module with tensors of its own."""
    tensors = tensors_of(network)
    values = {name: tensor.detach()[index].clone() for name, tensor in tensors.items()}
    particle = _with_tensors(network, values, nn.Parameter)
    for layer in particle.modules():
        if isinstance(layer, nn.RNNBase):
            del layer.flatten_parameters
            layer.flatten_parameters()
    return particle


def _with_tensors(
    network: nn.Module, values: dict[str, Tensor], kind: type[nn.Parameter]
) -> nn.Module:
    """A copy of a network with these tensors, its parameters of this kind."""
    replacements: dict[int, Any] = {}
    for name, tensor in tensors_of(network).items():
        value = values[name]
        is_parameter = isinstance(tensor, nn.Parameter)
        replacements[id(tensor)] = kind(value, tensor.requires_grad) if is_parameter else value
    return copy.deepcopy(network, replacements)


def _stay() -> None:
    """Instead of `flatten_parameters`."""


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def places_of(module: nn.Module) -> dict[str, str]:
    """The name of the tensor at every place in a module.

    Tied tensors have one name and several places, a shared module's tensors have one place.
    """
    names = {id(tensor): name for name, tensor in tensors_of(module).items()}
    places = {}
    for prefix, part in module.named_modules():
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                places[f"{prefix}.{name}" if prefix else name] = names[id(tensor)]
    return places


def check_stackable(modules: Sequence[nn.Module], in_chunks: bool) -> None:
    """Raise if the modules cannot be stacked."""
    first = modules[0]
    refuse_lazy(first)
    if len(modules) > 1 and not any(True for _ in first.parameters()):
        raise ValueError(f"{type(first).__name__} has no parameters: N copies would be equal")
    if any(getattr(module, "sparse", False) for module in first.modules()):
        raise ValueError("particles have dense gradients: make every Embedding with sparse=False")
    if in_chunks and any(getattr(module, "max_norm", None) for module in first.modules()):
        raise ValueError("an Embedding with max_norm writes its weights: use chunk_size=None")
    for number, module in enumerate(modules[1:], 1):
        check_same_network(first, module, f"module {number} is of another architecture")


def check_names(network: nn.Module, owner: nn.Module) -> None:
    """Raise if a part of the network has the name of something else of its new owner."""
    for name in (*network._parameters, *network._buffers, *network._modules):
        if name in vars(owner) or hasattr(type(owner), name):
            raise ValueError(
                f"the network has a part named {name!r}, which an ol.Ensemble uses itself: "
                "rename it, or wrap the network in nn.Sequential"
            )


def all_equal(modules: Sequence[nn.Module]) -> bool:
    """Whether there are several modules, all with the same parameters."""
    first = list(modules[0].parameters())
    for module in modules[1:]:
        if not all(map(torch.equal, first, module.parameters())):
            return False
    return len(modules) > 1


def check_same_network(first: nn.Module, other: nn.Module, complaint: str) -> None:
    """Raise if two networks do not compute the same function of their tensors."""
    shapes = {name: tensor.shape for name, tensor in tensors_of(first).items()}
    check_same_shapes(shapes, tensors_of(other), complaint)
    check_same_layers(first, other, complaint)


def check_same_layers(first: nn.Module, other: nn.Module, complaint: str) -> None:
    """Raise if layers of two networks differ: in kind, in an option, or in what is trained."""
    theirs = dict(other.named_modules())
    for name, layer in first.named_modules():
        where = f"{complaint}: " + (f"layer {name!r}" if name else "the network")
        there = theirs.get(name)
        if _kind(there) != _kind(layer):
            raise ValueError(
                f"{where} is a {type(layer).__name__} here and a {type(there).__name__} there"
            )
        options = _options(layer)
        for option, value in _options(there).items():
            ours = options.get(option, value)
            if value != ours:
                raise ValueError(f"{where} has {option}={ours!r} here and {value!r} there")
    trained = {name: p.requires_grad for name, p in first.named_parameters()}
    for name, parameter in other.named_parameters():
        if parameter.requires_grad != trained[name]:
            states = {True: "trained", False: "frozen"}
            there, here = states[parameter.requires_grad], states[trained[name]]
            raise ValueError(f"{complaint}: {name!r} is {there} there and {here} here")


def _kind(layer: nn.Module | None) -> Any:
    """A layer's class; a parametrised layer has a class of its own, under the original one."""
    kind = type(layer)
    parametrised = kind.__module__ == "torch.nn.utils.parametrize"
    return (kind.__name__, kind.__bases__) if parametrised else kind


_PLAIN = bool, int, float, complex, str, bytes, type(None), torch.dtype


def _options(layer: nn.Module | None) -> dict[str, Any]:
    """The plain values on which a layer's forward pass may depend, such as a stride or a mode."""
    values: dict[str, Any] = {}
    for name, value in vars(layer).items():
        if isinstance(value, FunctionType):
            values[name] = value.__code__
        elif isinstance(value, (*_PLAIN, BuiltinFunctionType)):
            values[name] = value
        elif isinstance(value, tuple | list) and all(isinstance(item, _PLAIN) for item in value):
            values[name] = tuple(value)
    return values


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
