"""Layers that are linear in their weights, `outputs = a W`, and their sums of a a^T.

Every layer here consists of g blocks, linear maps with d inputs and K outputs each,

    outputs `[g, R, K]` = a `[g, R, d]` W `[g, d, K]`,

where R counts samples and positions in them. The inputs of a block with a bias end with a constant
1. Weights of any such layer are `[g K, ...]`, so `reshape(g, K, -1)` is W^T without its bias.

    layer          g              K              a
    Linear         1              outputs        inputs
    convolution    groups         channels / g   patches (im2col)
    normalisation  channels       1              the normalised input of the channel
    Embedding      entries        width          1 where the entry is used: a a^T counts uses

Only trained parameters take part: with a frozen weight a is (1), with a frozen bias it has no 1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..ensemble.device import available_memory
from ..ensemble.stacking import places_of

CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
PER_CHANNEL = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm
PER_ELEMENT = nn.LayerNorm, nn.RMSNorm
KNOWN = nn.Linear, *CONVOLUTIONS, *PER_CHANNEL, *PER_ELEMENT, nn.Embedding


@dataclass(frozen=True)
class Layer:
    """Names of a layer's trained parameters (None: frozen or absent) and its sizes."""

    weight: str | None
    bias: str | None
    blocks: int  # g
    columns: int  # K
    inputs: int  # of a block, without the constant 1

    @property
    def name(self) -> str:
        return self.weight or self.bias or ""

    @property
    def width(self) -> int:
        """d, the number of rows of a block's W."""
        return self.inputs * (self.weight is not None) + (self.bias is not None)

    def matrix(self, tensors: dict[str, Tensor]) -> Tensor:
        """W `[N, g, d, K]`, float64, from parameters `[N, ...]`."""
        parts, shape = [], (self.blocks, self.columns, -1)
        for name in filter(None, (self.weight, self.bias)):
            values = tensors[name].detach().double()
            parts.append(values.reshape(len(values), *shape).mT)
        return torch.cat(parts, dim=2)

    def parameters(self, matrix: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `matrix`: parameters by name, with the shapes and dtypes of `like`."""
        rest, found = matrix, {}
        for name, rows in ((self.weight, self.inputs), (self.bias, 1)):
            if name is not None:
                part, rest = rest[:, :, :rows], rest[:, :, rows:]
                found[name] = part.mT.reshape(like[name].shape).to(like[name].dtype)
        return found

    def gram(self, module: nn.Module, x: Tensor, portion: int = 1 << 24) -> Tensor:
        """sum a a^T `[g, d, d]` over the module's input, float64; `portion` bounds `patches`."""
        if isinstance(module, nn.Embedding):
            ones = torch.ones_like(x, dtype=torch.float64).flatten()
            return ones.new_zeros(self.blocks).index_add(0, x.flatten(), ones).view(-1, 1, 1)
        total: Any = 0.0
        for rows in inputs_of(module, x, portion):
            parts = [rows.double()] if self.weight is not None else []
            if self.bias is not None:
                parts.append(torch.ones_like(rows[..., :1], dtype=torch.float64))
            a = torch.cat(parts, dim=2)
            total = total + a.mT @ a
        return total


def inputs_of(module: nn.Module, x: Tensor, portion: int) -> Iterator[Tensor]:
    """A layer's inputs in portions `[g, R, d]`, without the constant."""
    if isinstance(module, nn.Linear):
        yield x.reshape(1, -1, module.in_features)
    elif isinstance(module, CONVOLUTIONS):
        x = x if x.dim() == module.weight.dim() else x.unsqueeze(0)
        size = max(1, portion // max(1, patches(module, x[:1]).numel()))
        for part in x.split(size):
            yield patches(module, part)
    elif isinstance(module, PER_ELEMENT):
        size = math.prod(module.normalized_shape)  # type: ignore[arg-type]
        yield _normalized(module, x).reshape(-1, size).T.unsqueeze(2)
    else:
        yield _normalized(module, x).transpose(0, 1).flatten(1).unsqueeze(2)


def patches(module: Any, x: Tensor) -> Tensor:
    """im2col: the inputs of each position of a convolution, `[groups, B * positions, d]`."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    options = zip(module.kernel_size, module.stride, module.dilation, strict=True)
    dims = len(module.kernel_size)
    for dim, (kernel, stride, dilation) in enumerate(options, start=2):
        x = x.unfold(dim, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    # [B, C, positions..., kernel...] -> [groups, B, positions..., C/groups, kernel...]
    x = x.unflatten(1, (module.groups, -1)).movedim(1, 0).movedim(2, 2 + dims)
    return x.flatten(1, 1 + dims).flatten(2)


def _normalized(module: Any, x: Tensor) -> Tensor:
    """The normalised input of a normalisation layer, before its weight and bias."""
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.RMSNorm):
        return F.rms_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, eps=module.eps)
    mean, variance = module.running_mean, module.running_var
    return F.batch_norm(x, mean, variance, training=mean is None, eps=module.eps)


def find_layers(particles: Ensemble) -> dict[str, Layer]:
    """The layers of all modules with trained parameters, by their places in the network.

    Modules with tied parameters share a layer. A trained parameter of no known layer is refused.
    """
    names = places_of(particles.template)
    trained = {name for name, p in particles.named_parameters() if p.requires_grad}
    layers: dict[str, Layer] = {}
    for place, module in particles.template.named_modules():
        prefix = f"{place}." if place else ""
        own = {part: names.get(prefix + part) for part in ("weight", "bias")}
        if _known(module) and trained & set(own.values()):
            weight, bias = (name if name in trained else None for name in own.values())
            layers[place] = Layer(weight, bias, *_sizes(module))
    if not trained:
        raise ValueError("no parameter of the particles requires a gradient: nothing is learned")
    for layer in layers.values():
        for other in layers.values():
            shared = {layer.weight, layer.bias} & {other.weight, other.bias} - {None}
            if shared and layer != other:
                raise ValueError(
                    f"the product cannot merge {min(filter(None, shared))!r}: it is tied between "
                    "layers that use it in different ways; untie it, or freeze it"
                )
    known = {name for layer in layers.values() for name in (layer.weight, layer.bias)}
    for name in sorted(trained - known):
        owner = particles.template.get_submodule(name.rpartition(".")[0])
        raise ValueError(
            f"the product cannot merge {name!r} of a {type(owner).__name__}: it knows Linear, "
            "Conv1d, Conv2d, Conv3d, BatchNorm, LayerNorm, RMSNorm, GroupNorm and Embedding "
            "layers; freeze it with requires_grad_(False)"
        )
    return layers


def _known(module: nn.Module) -> bool:
    """Whether a module is one of these layers, real, and no subclass with another `forward`."""
    kind = next((kind for kind in KNOWN if isinstance(module, kind)), None)
    own = "forward" not in vars(module) and type(module).forward is getattr(kind, "forward", None)
    return own and not any(p.is_complex() for p in module.parameters())


def _sizes(module: Any) -> tuple[int, int, int]:
    """(g, K, inputs of a block) of a known layer."""
    if isinstance(module, nn.Linear):
        return 1, module.out_features, module.in_features
    if isinstance(module, CONVOLUTIONS):
        return module.groups, module.out_channels // module.groups, module.weight[0].numel()
    if isinstance(module, nn.Embedding):
        return module.num_embeddings, module.embedding_dim, 1
    return module.weight.numel(), 1, 1


def check_memory(layers: dict[str, Layer], particles: Ensemble) -> None:
    """Raise `MemoryError` if seven matrices per block (sums, new sums, a task's) do not fit."""
    entries = sum(layer.blocks * layer.width**2 for layer in set(layers.values()))
    needed = 8 * 7 * particles.shard.count * entries
    available = available_memory(particles.device)
    if available is not None and needed > available:
        raise MemoryError(
            f"the input moments of {particles.shard.count} particles need {needed / 2**30:.1f} GiB "
            f"but {available / 2**30:.1f} GiB are free on {particles.device}: use fewer particles, "
            "or narrower layers"
        )
