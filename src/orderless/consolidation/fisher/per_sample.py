"""Squares of per-sample gradients, for N networks as functions of their parameters.

For Linear and Conv2d layers they follow from a layer's inputs and output gradients. A
torch-function mode around the network records the inputs of `F.linear` and `F.conv2d` and adds a
probe (zeros) to the outputs. The gradient with respect to the probe is delta, one row per sample,
and the layer's parameters need no gradient at all.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.overrides import TorchFunctionMode

from ...ensemble import Ensemble, random
from ...ensemble.precision import matrix_precision
from ...ensemble.rules import ParticleRules
from ..base import Named

SMALL = 1 << 22  # numbers that may be in memory at once, whatever the size of the ensemble
# From log p `[N, B, K]` to the d `[N, B, K]` in sum_d (d . grad log p)^2.
Directions = Callable[[Tensor], Iterator[Tensor]]


@dataclass(frozen=True)
class Layer:
    """A layer with one row per sample: names of its parameters, shape of one sample's output.

    `patches` are the arguments of `F.unfold` after the inputs of a convolution; None: Linear.
    """

    weight: str
    bias: str | None
    output: torch.Size
    dtype: torch.dtype
    patches: tuple[Any, ...] | None

    def add_squares(self, totals: Named, delta: Tensor, inputs: Tensor) -> None:
        """totals += sum over samples of squared gradients; delta, inputs `[N, B, ...]`."""
        weight = totals.get(self.weight)
        bias = None if self.bias is None else totals.get(self.bias)
        delta = delta.to((weight if weight is not None else inputs).dtype)
        if bias is not None:
            positions = delta.reshape(*delta.shape[:3], -1)  # a Linear layer has one
            bias.add_(positions.sum(3).square().sum(1))
        if weight is None:
            return
        if self.patches is None:
            weight.baddbmm_(delta.square().mT, inputs.to(delta.dtype).square())
            return
        # Positions are summed inside the square: compute the gradients of a few samples at a time.
        n, samples, channels = delta.shape[:3]
        patches = (weight[0, 0].numel() + channels) * delta[0, 0, 0].numel()
        chunk = max(1, SMALL // max(weight.numel(), n * patches))
        for start in range(0, samples, chunk):
            part = slice(start, start + chunk)
            rows = delta[:, part].flatten(0, 1).flatten(2)
            seen = F.unfold(inputs[:, part].flatten(0, 1).to(delta.dtype), *self.patches)
            gradients = torch.bmm(rows, seen.mT).view(n, -1, *weight.shape[1:])
            weight.add_(gradients.square_().sum(1))


class LayerProbes(TorchFunctionMode):
    """Watches the layers of a network. `names`: id of a parameter -> its name.

    With `probes` it adds them to the outputs of the layers they are named after and records those
    layers' `inputs`. Without, it collects in `found` every call that could be a `Layer` for a batch
    of `samples`.
    """

    def __init__(self, names: dict[int, str], samples: int, probes: Named | None = None) -> None:
        super().__init__()
        self.names, self.samples, self.probes = names, samples, probes
        self.inputs: Named = {}
        self.found: list[Layer] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        run = partial(self._layer, func) if func in (F.linear, F.conv2d) else func
        return run(*args, **(kwargs or {}))

    def _layer(
        self,
        function: Callable[..., Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        """The layer's outputs; probed, or noted as found, if it has one row (image) per sample."""
        options: tuple[Any, ...] = ()
        patches, simple = None, input.dim() == 2
        if function is F.conv2d:
            options = stride, padding, dilation, groups
            patches = weight.shape[-2:], dilation, padding, stride
            simple = input.dim() == 4 and groups == 1 and not isinstance(padding, str)
        name, bias_name = self.names.get(id(weight)), self.names.get(id(bias))
        fits = simple and len(input) == self.samples and (bias is None or bias_name is not None)
        if name is None or not fits or (self.probes is not None and name not in self.probes):
            return function(input, weight, bias, *options)
        y = function(input, weight.detach(), None if bias is None else bias.detach(), *options)
        if self.probes is None:
            self.found.append(Layer(name, bias_name, y.shape[1:], y.dtype, patches))
            return y
        self.inputs[name] = input.detach()
        return y + self.probes[name]


class Networks:
    """The particles of one span, run as functions of their parameters."""

    def __init__(
        self,
        particles: Ensemble,
        span: slice,
        logits: Callable[[Any], Tensor] | None,
        active: Tensor | None,
    ) -> None:
        self.particles, self.logits = particles, logits
        self.active = None if active is None else active.to(particles.device)
        self.parameters = {n: p.data[span] for n, p in particles.named_parameters()}
        self.buffers = {n: b[span].clone() for n, b in particles.particle_buffers().items()}
        self.indices = particles.indices[span]

    def keys(self, stream: int, first: int, count: int) -> Tensor:
        """A random key for each particle and each of `count` samples: `[N, B]`."""
        samples = torch.arange(first, first + count, device=self.indices.device)
        return random.particle_keys(
            self.particles.seed, samples.unsqueeze(0), self.indices.unsqueeze(1), stream
        )

    def _log_p(self, outputs: Any) -> Tensor:
        scores = outputs if self.logits is None else self.logits(outputs)
        if not isinstance(scores, Tensor):
            raise TypeError(
                f"the network returns a {type(scores).__name__}: pass logits=..., a function that "
                "picks the logits (orderless_lab.rl.policy_logits, for policies)"
            )
        if self.active is not None:
            scores = scores.index_select(-1, self.active)
        return torch.log_softmax(scores if scores.dtype == torch.float64 else scores.float(), -1)

    def _run(
        self, parameters: Named, x: Tensor, probes: Named | None
    ) -> tuple[Tensor, Named, list[Layer]]:
        """log p `[N, B, K]`, the probed layers' inputs `[N, B, ...]`, the layers found."""
        found: list[Layer] = []

        def network(parameters: Named, buffers: Named, index: Tensor, probes: Any) -> Any:
            def key(stream: int) -> Tensor:
                draw = self.particles.noise_counter
                return random.particle_keys(self.particles.seed, draw, index, stream)

            names = {id(tensor): name for name, tensor in parameters.items()}
            watch = LayerProbes(names, len(x), probes)
            with ParticleRules(key, fast=self.particles.fast), watch:
                outputs = functional_call(self.particles.template, {**parameters, **buffers}, (x,))
            found.extend(watch.found)
            return self._log_p(outputs), watch.inputs

        dims = (0, 0, 0, None if probes is None else 0)
        run = torch.vmap(network, in_dims=dims, randomness="different")
        with matrix_precision(self.particles.precision, self.particles.device):
            log_p, inputs = run(parameters, self.buffers, self.indices, probes)
        return log_p, inputs, found

    def layers(self, x: Tensor) -> list[Layer]:
        """The Linear and Conv2d layers with one row per sample, used in a single call each.

        A layer may have as many rows as there are samples by chance, so the network runs on two
        numbers of samples.
        """
        two, three = (self._single_calls(x[:1].expand(rows, *x.shape[1:])) for rows in (2, 3))
        return [layer for layer in two if layer in three]

    def _single_calls(self, x: Tensor) -> list[Layer]:
        """The layers found on x whose parameters have no other use than one call.

        The calls see detached parameters, so a parameter that still gets a gradient is in use
        somewhere else.
        """
        leaves = {n: p.detach().requires_grad_() for n, p in self.parameters.items()}
        with torch.enable_grad():
            log_p, _, found = self._run(leaves, x, None)
        elsewhere: set[str] = set()
        if log_p.requires_grad:
            values = list(leaves.values())
            gradients = torch.autograd.grad(log_p.sum(), values, allow_unused=True)
            pairs = zip(leaves, gradients, strict=True)
            elsewhere = {name for name, gradient in pairs if gradient is not None}
        uses = Counter(name for layer in found for name in (layer.weight, layer.bias))
        once = {None, *(name for name in leaves if uses[name] == 1 and name not in elsewhere)}
        return [layer for layer in found if {layer.weight, layer.bias} <= once]

    def add_squares(
        self, totals: Named, layers: list[Layer], x: Tensor, directions: Directions
    ) -> None:
        """totals += the squared gradients of every sample of x."""
        n = len(self.indices)
        probes = {
            layer.weight: torch.zeros(
                n, len(x), *layer.output, dtype=layer.dtype, device=x.device, requires_grad=True
            )
            for layer in layers
        }
        with torch.enable_grad():
            log_p, inputs, _ = self._run(self.parameters, x, probes)
        for direction in directions(log_p) if layers else ():
            along = (direction * log_p).sum()
            deltas = torch.autograd.grad(
                along, list(probes.values()), retain_graph=True, allow_unused=True
            )
            for layer, delta in zip(layers, deltas, strict=True):
                if delta is not None:
                    layer.add_squares(totals, delta, inputs[layer.weight])
        others = totals.keys() - {name for layer in layers for name in (layer.weight, layer.bias)}
        if others:
            modules = self.particles.template.modules()
            unknown = any(isinstance(each, nn.RNNBase | nn.PReLU) for each in modules)
            add = self._add_one_by_one if unknown else self._add_others
            add(totals, others, x, torch.stack(list(directions(log_p)), -2))

    @torch.no_grad()
    def _add_others(self, totals: Named, names: set[str], x: Tensor, directions: Tensor) -> None:
        """`add_squares` for parameters outside of `Layer`s; directions `[N, B, D, K]`."""
        others = {name: self.parameters[name] for name in names}
        fixed = {name: p for name, p in self.parameters.items() if name not in names}
        fixed |= self.buffers
        allowed = max(SMALL, sum(p.numel() for p in self.parameters.values()))
        chunk = max(1, allowed // sum(p.numel() for p in others.values()))

        def sample(others: Named, fixed: Named, x: Tensor, directions: Tensor) -> Named:
            def log_p(others: Named) -> Tensor:
                tensors = {**fixed, **others}
                outputs = functional_call(self.particles.template, tensors, (x.unsqueeze(0),))
                return self._log_p(outputs)[0]

            pull = vjp(log_p, others)[1]
            squares = {name: torch.zeros_like(p) for name, p in others.items()}
            for direction in directions.unbind(0):
                (gradients,) = pull(direction)
                squares = {name: s + gradients[name].square() for name, s in squares.items()}
            return squares

        def network(others: Named, fixed: Named, x: Tensor, directions: Tensor) -> Named:
            each = torch.vmap(sample, in_dims=(None, None, 0, 0), randomness="different")
            return {name: s.sum(0) for name, s in each(others, fixed, x, directions).items()}

        networks = torch.vmap(network, in_dims=(0, 0, None, 0), randomness="different")
        # half-precision inputs and float32 statistics: only CUDA's BatchNorm takes both
        device = self.particles.device
        precision = self.particles.precision if device.type == "cuda" else "float32"
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            with matrix_precision(precision, device):
                squares = networks(others, fixed, x[part], directions[:, part])
            for name, square in squares.items():
                totals[name].add_(square)

    def _add_one_by_one(
        self, totals: Named, names: set[str], x: Tensor, directions: Tensor
    ) -> None:
        """`_add_others` by plain gradients of one sample at a time."""
        leaves = {name: self.parameters[name].detach().requires_grad_() for name in names}
        for sample in range(len(x)):
            with torch.enable_grad():
                parameters = {**self.parameters, **leaves}
                log_p, _, _ = self._run(parameters, x[sample : sample + 1], {})
            for direction in directions[:, sample].unbind(1):
                along = (direction.unsqueeze(1) * log_p).sum()
                gradients = torch.autograd.grad(
                    along, list(leaves.values()), retain_graph=True, allow_unused=True
                )
                for name, gradient in zip(leaves, gradients, strict=True):
                    if gradient is not None:
                        totals[name].add_(gradient.square())
