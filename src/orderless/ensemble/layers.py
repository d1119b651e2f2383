"""Layers that are linear in their weights, `outputs = a W`, and a watcher of what they see.

Every layer here consists of g blocks, linear maps with d inputs and K outputs each,

    outputs `[g, R, K]` = a `[g, R, d]` W `[g, d, K]`,

where R counts samples and positions in them. The inputs of a block with a bias end with a constant
1. Weights of any such layer are `[g K, ...]`, so `reshape(g, K, -1)` is W^T without its bias.

    layer          g              K              a
    Linear         1              outputs        inputs
    convolution    groups         channels / g   patches (im2col)
    normalisation  channels       1              the normalised input of the channel
    Embedding      entries        width          1 where the entry is used, else 0

The gradient of a loss with respect to W is a^T delta, with delta `[g, R, K]` its gradient with
respect to the outputs. So whoever knows a and delta needs no gradient of a weight.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .ensemble import Ensemble
from .stacking import places_of

CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
PER_CHANNEL = *BATCH_NORMS, nn.GroupNorm
PER_ELEMENT = nn.LayerNorm, nn.RMSNorm
KNOWN = nn.Linear, *CONVOLUTIONS, *PER_CHANNEL, *PER_ELEMENT, nn.Embedding


@dataclass(frozen=True)
class Layer:
    """A layer's parameters, as rows of W, and its sizes."""

    parts: tuple[tuple[str, int], ...]  # names of the weight, of the bias, and rows of W in each
    has_weight: bool  # whether the weight is among them
    blocks: int  # g
    columns: int  # K

    @property
    def name(self) -> str:
        return self.parts[0][0]

    @property
    def width(self) -> int:
        """d, the number of rows of a block's W."""
        return sum(rows for _, rows in self.parts)

    def matrix(self, tensors: dict[str, Tensor]) -> Tensor:
        """W `[N, g, d, K]` from parameters `[N, ...]`."""
        parts = []
        for name, rows in self.parts:
            values = tensors[name].detach()
            parts.append(values.reshape(len(values), self.blocks, self.columns, rows).mT)
        return torch.cat(parts, dim=2)

    def parameters(self, matrix: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `matrix`: parameters by name, with the shapes and dtypes of `like`."""
        found = {}
        first = 0
        for name, rows in self.parts:
            part = matrix[:, :, first : first + rows].mT
            found[name] = part.reshape(like[name].shape).to(like[name].dtype)
            first += rows
        return found

    def rows(self, module: nn.Module, entering: Tensor) -> Tensor:
        """a `[g, R, d]`, the rows of one sample after those of another; see `entering`.

        The blocks of an Embedding are the columns of one, `[1, R, g]`.
        """
        inputs = _inputs(module, entering)
        constant = torch.ones_like(inputs[..., :1])
        if not self.has_weight:
            return constant
        return inputs if len(self.parts) == 1 else torch.cat([inputs, constant], dim=2)

    def leaving(self, module: nn.Module, outputs: Tensor) -> Tensor:
        """The module's outputs, or their gradient, in the order of `rows`: `[g or 1, R, K]`."""
        if isinstance(module, CONVOLUTIONS + PER_CHANNEL):
            samples = len(outputs)
            channels = outputs.reshape(samples, self.blocks, self.columns, -1)
            return channels.permute(1, 0, 3, 2).flatten(1, 2)
        blocks = 1 if isinstance(module, nn.Embedding) else self.blocks
        return outputs.reshape(-1, blocks, self.columns).transpose(0, 1)

    def gram(self, module: nn.Module, entering: Tensor, portion: int = 1 << 24) -> Tensor:
        """sum a a^T `[g, d, d]`, float64; `portion` bounds the numbers in patches at a time."""
        if isinstance(module, nn.Embedding):
            ones = torch.ones_like(entering, dtype=torch.float64).flatten()
            counts = ones.new_zeros(self.blocks).index_add(0, entering.flatten(), ones)
            return counts.view(-1, 1, 1)
        parts: Sequence[Tensor] = [entering]
        if isinstance(module, CONVOLUTIONS):
            one = self.rows(module, entering[:1])
            parts = entering.split(max(1, portion // max(1, one.numel())))
        total: Any = 0.0
        for part in parts:
            a = self.rows(module, part).double()
            total = total + a.mT @ a
        return total


def entering(module: Any, x: Tensor) -> Tensor:
    """What a module's weight multiplies: its input, normalised by the module if it does that."""
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.RMSNorm):
        return F.rms_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, eps=module.eps)
    if isinstance(module, BATCH_NORMS):
        mean, variance = module.running_mean, module.running_var
        return F.batch_norm(x, mean, variance, training=mean is None, eps=module.eps)
    unbatched = isinstance(module, CONVOLUTIONS) and x.dim() < module.weight.dim()
    return x.unsqueeze(0) if unbatched else x


def _inputs(module: Any, entering: Tensor) -> Tensor:
    """a `[g, R, d]` without the constant."""
    if isinstance(module, nn.Linear):
        return entering.reshape(1, -1, module.in_features)
    if isinstance(module, CONVOLUTIONS):
        return _patches(module, entering)
    if isinstance(module, nn.Embedding):
        used = F.one_hot(entering.flatten(), module.num_embeddings)
        if module.padding_idx is not None:
            used[:, module.padding_idx] = 0  # its entry is not trained
        return used.unsqueeze(0)
    if isinstance(module, PER_ELEMENT):
        return entering.reshape(-1, math.prod(module.normalized_shape)).T.unsqueeze(2)
    return entering.transpose(0, 1).flatten(1).unsqueeze(2)


def _patches(module: Any, x: Tensor) -> Tensor:
    """im2col: the inputs of each position of a convolution, `[groups, B * positions, d]`."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    options = zip(module.kernel_size, module.stride, module.dilation, strict=True)
    for dim, (kernel, stride, dilation) in enumerate(options, start=2):
        x = x.unfold(dim, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    # [B, C, positions..., kernel...] -> [groups, B, positions..., C/groups, kernel...]
    dims = len(module.kernel_size)
    x = x.unflatten(1, (module.groups, -1)).movedim(1, 0).movedim(2, 2 + dims)
    return x.flatten(1, 1 + dims).flatten(2)


def find_layers(particles: Ensemble, names: Collection[str]) -> dict[str, Layer]:
    """The layers with parameters among `names`, by their places in the network.

    Modules with tied parameters share a layer; those that use them in different ways are left out.
    """
    known = places_of(particles.template)
    layers: dict[str, Layer] = {}
    for place, module in particles.template.named_modules():
        prefix = f"{place}." if place else ""
        weight = known.get(f"{prefix}weight")
        bias = known.get(f"{prefix}bias")
        if is_known(module) and (weight in names or bias in names):
            blocks, columns, inputs = _sizes(module)
            both = ((weight, inputs), (bias, 1))
            parts = tuple((name, rows) for name, rows in both if name and name in names)
            layers[place] = Layer(parts, weight in names, blocks, columns)
    users: dict[str, set[Layer]] = {}
    for layer in layers.values():
        for name, _ in layer.parts:
            users.setdefault(name, set()).add(layer)
    return {
        place: layer
        for place, layer in layers.items()
        if all(len(users[name]) == 1 for name, _ in layer.parts)
    }


def is_known(module: nn.Module) -> bool:
    """Whether a module is one of these layers, real, and no subclass with another `forward`."""
    kind = next((kind for kind in KNOWN if isinstance(module, kind)), None)
    usual = "forward" not in vars(module) and type(module).forward is getattr(kind, "forward", None)
    return usual and not any(p.is_complex() for p in module.parameters())


def _sizes(module: Any) -> tuple[int, int, int]:
    """(g, K, inputs of a block) of a known layer."""
    if isinstance(module, nn.Linear):
        return 1, module.out_features, module.in_features
    if isinstance(module, CONVOLUTIONS):
        inputs = module.in_channels // module.groups * math.prod(module.kernel_size)
        return module.groups, module.out_channels // module.groups, inputs
    if isinstance(module, nn.Embedding):
        return module.num_embeddings, module.embedding_dim, 1
    if isinstance(module, nn.GroupNorm):
        return module.num_channels, 1, 1
    if isinstance(module, BATCH_NORMS):
        return module.num_features, 1, 1
    return math.prod(module.normalized_shape), 1, 1


See = Callable[[str, nn.Module, Tensor, Tensor], Any]


class Watcher:
    """`with Watcher(particles, places, see) as run: outputs, seen = run(x)`.

    At every call of the modules at `places`, `see(place, module, input, output)` is called inside
    the forward pass, as if for one network. `seen[place]` has one entry per call: what it returned,
    tensors (or a tree of them), for all networks `[N, ...]`.

    `run(x, probes)` adds `probes[place]` `[N, ...]` to the outputs at a place, so that the gradient
    with respect to a zero probe is the gradient with respect to the output. The modules' own
    parameters are detached: they get gradients from other uses only.
    """

    def __init__(self, particles: Ensemble, places: Collection[str], see: See) -> None:
        self.particles = particles
        self.places = places
        self.see = see
        self.last: set[str] = set()  # places whose output was that of the network

    def __enter__(self) -> Self:
        template = self.particles.template
        handles = [template.register_forward_pre_hook(self._begin)]
        for place in self.places:
            handles += self._watch(place, template.get_submodule(place))
        handles.append(template.register_forward_hook(self._end))
        self._handles = handles
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def __call__(self, x: Any, probes: Any = None) -> tuple[Any, dict[str, list[Any]]]:
        return self.particles(x, probes or {}, in_dims=(None, 0))

    def _begin(self, network: nn.Module, args: Any) -> Any:
        *own, self._probes = args
        self._seen: dict[str, list[Any]] = {}
        self._outputs: dict[str, Tensor] = {}
        return tuple(own)

    def _watch(self, place: str, module: nn.Module) -> Iterator[Any]:
        own: dict[str, nn.Parameter | None] = {}

        def before(module: nn.Module, args: Any) -> None:
            own.update(module._parameters)
            for name, parameter in own.items():
                if parameter is not None:
                    module._parameters[name] = parameter.detach()  # type: ignore[assignment]

        def after(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> Tensor:
            if place in self._probes:
                output = output + self._probes[place].to(output.dtype)
            x = args[0] if args else kwargs["input"]
            self._seen.setdefault(place, []).append(self.see(place, module, x, output))
            module._parameters.update(own)
            self._outputs[place] = output
            return output

        yield module.register_forward_pre_hook(before)
        yield module.register_forward_hook(after, with_kwargs=True)

    def _end(self, network: nn.Module, args: Any, outputs: Any) -> Any:
        self.last |= {place for place, output in self._outputs.items() if output is outputs}
        return outputs, self._seen
