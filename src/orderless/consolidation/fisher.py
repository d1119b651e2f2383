r"""The diagonal Fisher information of every particle's label distribution, sample by sample.

    F_p = 1/n sum_x E_{c ~ q(.|x)} (d log p(c|x) / d theta_p)^2

q is the network's own p ("exact": all classes, weighted by p; "sampled": one class drawn from p per
sample) or the given label ("empirical"). The square is inside the sum over samples; the squared
gradient of a batch is a different quantity.

Squared per-sample gradients without per-sample gradients: a layer with inputs a and output
gradients delta has d/dW = a_b^T delta_b for sample b (see `ensemble.layers`). Where a sample is one
row, as in a Linear layer, the sum over a batch is one product per particle:

    sum_b (d/dW)^2 = (a^2)^T (delta^2)

Where it is several rows (positions of a convolution, words), they are summed
inside the square, a few samples at a time. Every other parameter (of attention or recurrent layers,
of a module of one's own) gets its gradients by autograd, one sample at a time.

The networks run in evaluation mode, where samples do not mix. A network that mixes them even then
has no per-sample gradients, and the result is meaningless.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ..ensemble import Ensemble, random
from ..ensemble.device import matrix_precision
from ..ensemble.layers import Layer, Watcher, entering, find_layers
from .base import Data, Named, pairs

BATCH = 128  # samples in a pass, at most
KINDS = ("exact", "sampled", "empirical")
SMALL = 1 << 22  # numbers that may be in memory at once, whatever the size of the ensemble
_LABELS = 1 << 22  # a random stream separate from dropout and resampling
LogP = Callable[[Any], Tensor]  # from outputs to log p [N, B, K]


def fisher_information(
    particles: Ensemble,
    data: Data,
    *,
    kind: str = "exact",
    active: Tensor | None = None,
    samples: int | None = None,
    logits: Callable[[Any], Tensor] | None = None,
    draw: int = 0,
    names: Collection[str] | None = None,
) -> Named:
    """Each particle's diagonal Fisher information, by parameter name, `[N, ...]`.

    Parameters, buffers, `.grad`, training flags and RNG state are left unchanged.

    Memory, in units of the ensemble's parameters: 2, and the activations of a batch.

    Args:
        data: (x, y) as two tensors, or batches of such pairs, by which nothing changes but the
            memory. Labels are output columns; only
            `"empirical"` reads them.
        kind: `"exact"`, `"sampled"` or `"empirical"`. A sampled label is keyed on
            (seed, draw, i, sample): the same whatever N or the batch size.
        active: the output columns `[K]` that count as classes; None: all.
        samples: use at most this many samples, from the start of the data.
        logits: picks the class scores `[B, C]` out of one network's outputs.
        names: of the parameters; None: those that require a gradient.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if names is None:
        names = [name for name, p in particles.named_parameters() if p.requires_grad]
    log_p = partial(_log_p, logits=logits, active=active)
    indices = particles.indices.unsqueeze(1)
    squares: SquaredGradients | None = None
    totals = {n: torch.zeros_like(p.data) for n, p in particles.named_parameters() if n in names}
    count = 0
    with _undisturbed(particles, names):
        for x, y in _batches(data, samples):
            x = x.to(particles.device)
            y = y.to(particles.device)
            if squares is None:
                squares = SquaredGradients(particles, names, log_p, x[:1])
            numbers = torch.arange(count, count + len(x), device=x.device).unsqueeze(0)
            keys = random.particle_keys(particles.seed, numbers, indices, _LABELS + draw)
            uniform = random.uniform(keys, ())
            labels = partial(_label_weights, kind=kind, y=y, active=active, uniform=uniform)
            for terms in squares(x, labels, kind != "exact"):
                for name, term in terms.items():
                    totals[name] += term
            count += len(x)
    if not count:
        raise ValueError("the data holds no samples: the Fisher information needs at least one")
    return {name: total / count for name, total in totals.items()}


@contextmanager
def _undisturbed(particles: Ensemble, names: Collection[str]) -> Iterator[None]:
    """Gradients of these parameters alone, in evaluation mode and full precision, without noise or
    buffers that move on."""
    before = {name: p.requires_grad for name, p in particles.named_parameters()}
    generators = [particles.device] if particles.device.type == "cuda" else []
    precise = matrix_precision("float32", particles.device)
    with torch.random.fork_rng(generators), particles.evaluating(), particles.replay(), precise:
        try:
            for name, parameter in particles.named_parameters():
                parameter.requires_grad_(name in names)
            with torch.enable_grad():
                yield
        finally:
            for name, parameter in particles.named_parameters():
                parameter.requires_grad_(before[name])


def _batches(data: Data, samples: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs (x, y) of at most `BATCH` samples, `samples` in all."""
    left = sys.maxsize if samples is None else samples
    for x, y in pairs(data):
        if left > 0 and len(x):
            yield from zip(x[:left].split(BATCH), y[:left].split(BATCH), strict=True)
        left -= len(x)


def _log_p(outputs: Any, logits: Callable[[Any], Tensor] | None, active: Tensor | None) -> Tensor:
    """log p `[N, B, K]` from the networks' outputs."""
    scores = outputs if logits is None else torch.vmap(logits)(outputs)
    if not isinstance(scores, Tensor):
        raise TypeError(
            f"the network returns a {type(scores).__name__}: pass logits=..., a function that "
            "picks the logits, such as lambda outputs: outputs[0]"
        )
    if active is not None:
        scores = scores.index_select(-1, active.to(scores.device))
    return torch.log_softmax(scores if scores.dtype == torch.float64 else scores.float(), -1)


def _label_weights(
    log_p: Tensor, *, kind: str, y: Tensor, active: Tensor | None, uniform: Tensor
) -> Tensor:
    """q `[N, B, K]`; `uniform` `[N, B]` draws the labels."""
    p = log_p.exp()
    classes = p.shape[-1]
    if kind == "exact":
        return p
    if kind == "sampled":
        label = (p.cumsum(-1) < uniform.unsqueeze(-1)).sum(-1).clamp(max=classes - 1)
        return one_hot(label, classes).to(p.dtype)
    columns = torch.arange(classes) if active is None else active
    given = y.unsqueeze(1) == columns.to(y.device)
    unknown = ~given.any(1)
    if unknown.any():
        raise ValueError(
            f"label {int(y[unknown][0])} is not an output column that counts: {columns.tolist()}"
        )
    return given.to(p.dtype).expand_as(p)


def _scalars(q: Tensor, log_p: Tensor, one_label: bool) -> Iterator[Tensor]:
    """Scalars whose squared per-sample gradients add up to E_{c ~ q} (grad log p_c)^2."""
    if one_label:
        yield (q * log_p).sum()
        return
    for c in range(q.shape[-1]):
        yield (q[..., c].sqrt() * log_p[..., c]).sum()


class SquaredGradients:
    """The squared gradients of every sample; `x` `[1, ...]` is one that the networks run on."""

    def __init__(self, particles: Ensemble, names: Collection[str], log_p: LogP, x: Tensor) -> None:
        self.particles = particles
        self.log_p = log_p
        self.parameters: Named = {n: p for n, p in particles.named_parameters() if n in names}
        self.layers: dict[str, Layer] = {}  # by place; all other parameters are `elsewhere`
        self.outputs: dict[str, Tensor] = {}  # of those that are called
        self._find_layers(x)
        known = {name for layer in self.layers.values() for name, _ in layer.parts}
        self.elsewhere = {n: p for n, p in self.parameters.items() if n not in known}

    def _find_layers(self, x: Tensor) -> None:
        """Find layers that map samples one by one, in one call, with parameters of their own.

        A layer may have as many rows as there are samples by chance, so the networks run on two
        numbers of samples. Layers' parameters are detached in their own calls: one that still gets
        a gradient is used somewhere else.
        """
        layers = find_layers(self.particles, self.parameters)
        users = Counter(layers.values())
        unfit = {place for place, layer in layers.items() if users[layer] > 1}
        unfit |= {p for p in layers if getattr(self._module(p), "scale_grad_by_freq", False)}
        for samples in (2, 3):
            with Watcher(self.particles, layers, _seen) as run:
                outputs, seen = run(x.expand(samples, *x.shape[1:]))
                total = self.log_p(outputs).sum()
            gradients = _gradients(total, self.parameters)
            for place, layer in layers.items():
                calls = seen.get(place, [])
                by_samples = all(t.shape[1:2] == (samples,) for call in calls for t in call)
                read = any(name in gradients for name, _ in layer.parts)
                if len(calls) > 1 or not by_samples or read:
                    unfit.add(place)
        self.layers = {place: layer for place, layer in layers.items() if place not in unfit}
        self.outputs = {p: seen[p][0][1].detach() for p in self.layers if p in seen}

    def _module(self, place: str) -> nn.Module:
        return self.particles.template.get_submodule(place)

    def __call__(self, x: Tensor, labels: LogP, one_label: bool) -> Iterator[Named]:
        """Their sums over x `[B, ...]`, by name, as several terms; `labels(log_p)` is q."""
        probes = {
            place: output.new_zeros(len(output), len(x), *output.shape[2:], requires_grad=True)
            for place, output in self.outputs.items()
        }
        with Watcher(self.particles, self.layers, _seen) as run:
            outputs, seen = run(x, probes)
            log_p = self.log_p(outputs)
            q = labels(log_p.detach())
            for scalar in _scalars(q, log_p, one_label):
                for place, delta in _gradients(scalar, probes).items():
                    layer = self.layers[place]
                    inputs, _ = seen[place][0]
                    squares = _squares(layer, self._module(place), inputs, delta)
                    yield layer.parameters(squares, self.parameters)
        for sample in range(len(x)) if self.elsewhere else ():
            part = slice(sample, sample + 1)
            log_p = self.log_p(self.particles(x[part]))
            for scalar in _scalars(q[:, part], log_p, one_label):
                gradients = _gradients(scalar, self.elsewhere)
                yield {name: gradient.square() for name, gradient in gradients.items()}


def _seen(place: str, module: nn.Module, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    return entering(module, x), output


def _gradients(value: Tensor, tensors: Mapping[str, Tensor]) -> Named:
    """The gradients of a scalar, which keeps its graph, by those tensors that it depends on."""
    if not value.requires_grad or not tensors:
        return {}
    every = list(tensors.values())
    gradients = torch.autograd.grad(value, every, retain_graph=True, allow_unused=True)
    return {n: g for n, g in zip(tensors, gradients, strict=True) if g is not None}


@torch.no_grad()
def _squares(layer: Layer, module: nn.Module, inputs: Tensor, delta: Tensor) -> Tensor:
    """sum_b (a_b^T delta_b)^2 `[N, g, d, K]` over samples b; inputs and delta are `[N, B, ...]`."""
    n, samples = delta.shape[:2]

    def rows(start: int, count: int) -> tuple[Tensor, Tensor]:
        """a `[g, N, b, R, d]` and delta `[g, N, b, R, K]` of some samples."""
        part = slice(start, start + count)
        a = layer.rows(module, inputs[:, part].flatten(0, 1)).to(delta.dtype)
        out = layer.leaving(module, delta[:, part].flatten(0, 1))
        shape = n, min(count, samples - start), -1
        return a.unflatten(1, shape), out.unflatten(1, shape)

    a, out = rows(0, 1)
    one_row = a.shape[3] == 1
    numbers = a.numel() + out.numel() + a[..., 0, :].numel() * layer.columns
    chunk = samples if one_row else max(1, SMALL // numbers)
    total: Any = 0.0
    for start in range(0, samples, chunk):
        a, out = rows(start, chunk)
        if one_row:
            total = total + a.squeeze(3).square().mT @ out.squeeze(3).square()
        else:
            total = total + (a.mT @ out).square_().sum(2)
    return total.transpose(0, 1).reshape(n, layer.blocks, layer.width, layer.columns)
