"""N networks as functions of their parameters, and the squares of their per-sample gradients."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from ...particles import Ensemble, random
from ...particles.precision import matrix_precision
from ...particles.rules import ParticleRules
from ..base import Named
from .layers import SMALL, Layer, LayerProbes

# From log p `[N, B, K]` to the d `[N, B, K]` in sum_d (d . grad log p)^2.
Directions = Callable[[Tensor], Iterator[Tensor]]


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
                f"the network returns a {type(scores).__name__}: say with logits=... which part of "
                "it are the logits (orderless.rl.policy_logits, for policies)"
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

        tensors = parameters, self.buffers, self.indices, probes
        dims = (0, 0, 0, None if probes is None else 0)
        run = torch.vmap(network, in_dims=dims, randomness="different")
        with matrix_precision(self.particles.precision, self.particles.device):
            log_p, inputs = run(*tensors)
        return log_p, inputs, found

    def layers(self, x: Tensor) -> list[Layer]:
        """The Linear and Conv2d layers whose parameters have no other use than one call.

        While looking for them the calls see detached parameters, so a parameter that still gets a
        gradient must be in use somewhere else.
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
        once = {name for name in leaves if uses[name] == 1 and name not in elsewhere}
        return [
            layer
            for layer in found
            if layer.weight in once and (layer.bias is None or layer.bias in once)
        ]

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
        names = list(probes)
        for direction in directions(log_p) if layers else ():
            along = (direction * log_p).sum()
            deltas = torch.autograd.grad(
                along, list(probes.values()), retain_graph=True, allow_unused=True
            )
            by_name = dict(zip(names, deltas, strict=True))
            for layer in layers:
                delta = by_name[layer.weight]
                if delta is not None:
                    layer.add_squares(totals, delta, inputs[layer.weight])
        covered = {name for layer in layers for name in (layer.weight, layer.bias)}
        others = totals.keys() - covered
        if others:
            modules = self.particles.template.modules()
            unknown = any(isinstance(each, nn.RNNBase | nn.PReLU) for each in modules)
            add = self._add_one_by_one if unknown else self._add_others
            add(totals, others, x, torch.stack(list(directions(log_p)), -2))

    @torch.no_grad()
    def _add_others(self, totals: Named, names: set[str], x: Tensor, directions: Tensor) -> None:
        """The same for parameters outside of `Layer`s; directions `[N, B, D, K]`."""
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
        """The same by plain gradients: with one sample, a particle's gradient is that sample's."""
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
