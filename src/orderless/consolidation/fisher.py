r"""The diagonal Fisher information of every particle's label distribution, sample by sample.

    F_p = 1/n sum_x E_{c ~ q(.|x)} (d log p(c|x) / d theta_p)^2

q is the network's own p ("exact": all classes, weighted by p; "sampled": one class drawn from p per
sample) or the given label ("empirical"). The square is inside the sum over samples; the squared
gradient of a batch is a different quantity.

Squared per-sample gradients without per-sample gradients: a layer with inputs a and output
gradients delta has d/dW = a_b^T delta_b for sample b (see `ensemble.layers`). Where a sample is one
row, as in a Linear layer, the sum over a batch is one product per particle:

    sum_b (d/dW)^2 = (a^2)^T (delta^2)

Where it is several rows (positions of a convolution, words, two calls of a layer), they are summed
inside the square, a few samples at a time. Every other parameter (of attention or recurrent layers,
of a module of one's own) gets its gradients by autograd, one sample at a time.

The networks run in evaluation mode, where samples do not mix. A network that mixes them even then
has no per-sample gradients, and the result is meaningless.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble, random
from ..ensemble.layers import Layer, Watcher, entering, find_layers
from ..ensemble.pairs import Data, pairs
from ..ensemble.precision import matrix_precision
from .base import Named

KINDS = ("exact", "sampled", "empirical")
SMALL = 1 << 22  # numbers that may be in memory at once, whatever the size of the ensemble
_LABELS = 1 << 22  # a random stream separate from dropout and resampling
# From log p `[N, B, K]` to the d `[N, B, K]` in sum_d (d . grad log p)^2.
Directions = Callable[[Tensor], Iterator[Tensor]]


def fisher_information(
    particles: Ensemble,
    data: Data,
    *,
    kind: str = "exact",
    active: Tensor | None = None,
    samples: int | None = None,
    batch_size: int = 128,
    logits: Callable[[Any], Tensor] | None = None,
    draw: int = 0,
    names: Collection[str] | None = None,
) -> Named:
    """Each particle's diagonal Fisher information, by parameter name, `[N, ...]`.

    Parameters, buffers, `.grad`, training flags and RNG state are left unchanged.

    Memory, in units of the ensemble's parameters: 2, and one batch's activations.

    Args:
        data: (x, y) as two tensors, or batches of such pairs. Labels are output columns; only
            `"empirical"` reads them.
        kind: `"exact"`, `"sampled"` or `"empirical"`. A sampled label is keyed on
            (seed, draw, i, sample): the same whatever N or the batch size.
        active: the output columns `[K]` that count as classes; None: all.
        samples: use at most this many samples, from the start of the data.
        batch_size: samples per pass; it bounds memory and does not change the result.
        logits: picks the class scores `[B, C]` out of one network's outputs.
        names: of the parameters; None: those that require a gradient.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if samples is not None and samples < 1:
        raise ValueError(f"at least one sample must be used, got {samples}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if names is None:
        names = [name for name, p in particles.named_parameters() if p.requires_grad]
    log_p = partial(_log_p, logits=logits, active=active)
    squares: _Squares | None = None
    count = 0
    with _undisturbed(particles):
        for x, y in _batches(data, samples, batch_size):
            x = x.to(particles.device)
            y = y.to(particles.device)
            if squares is None:
                squares = _Squares(particles, names, log_p, x[:1])
            keys = _keys(particles, _LABELS + draw, count, len(x))
            squares.add(x, partial(_directions, kind=kind, y=y, active=active, keys=keys))
            count += len(x)
    if squares is None:
        raise ValueError("the data holds no samples: the Fisher information needs at least one")
    return {name: total / count for name, total in squares.by_name().items()}


@contextmanager
def _undisturbed(particles: Ensemble) -> Iterator[None]:
    """Evaluation mode and full precision; random generators and `requires_grad` come back."""
    trained = {name for name, p in particles.named_parameters() if p.requires_grad}
    generators = [particles.device] if particles.device.type == "cuda" else []
    precise = matrix_precision("float32", particles.device)
    with torch.random.fork_rng(generators), particles.evaluating(), particles.replay(), precise:
        try:
            yield
        finally:
            _require_gradients(particles, trained)


def _require_gradients(particles: Ensemble, names: Collection[str]) -> None:
    """Exactly these parameters require a gradient."""
    for name, parameter in particles.named_parameters():
        parameter.requires_grad_(name in names)


def _batches(data: Data, samples: int | None, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs (x, y) of at most `batch_size` samples, `samples` in all."""
    left = samples
    for x, y in pairs(data):
        x, y = x[:left], y[:left]
        left = None if left is None else left - len(x)
        if len(x):
            yield from zip(x.split(batch_size), y.split(batch_size), strict=True)
        if left == 0:
            return


def _keys(particles: Ensemble, stream: int, first: int, count: int) -> Tensor:
    """A random key for each particle and each of `count` samples: `[N, B]`."""
    indices = particles.indices.unsqueeze(1)
    samples = torch.arange(first, first + count, device=indices.device).unsqueeze(0)
    return random.particle_keys(particles.seed, samples, indices, stream)


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


def _directions(
    log_p: Tensor, *, kind: str, y: Tensor, active: Tensor | None, keys: Tensor
) -> Iterator[Tensor]:
    """The d `[N, B, K]` of which sum_d (d . grad log p)^2 is the Fisher information."""
    p = log_p.detach().exp()
    classes = p.shape[-1]
    if kind == "exact":  # E_c (grad log p_c)^2 = sum_c (sqrt(p_c) grad log p_c)^2
        for c in range(classes):
            direction = torch.zeros_like(p)
            direction[..., c] = p[..., c].sqrt()
            yield direction
        return
    if kind == "sampled":
        uniform = random.uniform(keys, ()).unsqueeze(-1)
        label = (p.cumsum(-1) < uniform).sum(-1).clamp(max=classes - 1)
        yield torch.nn.functional.one_hot(label, classes).to(p.dtype)
        return
    columns = torch.arange(classes) if active is None else active
    given = y.unsqueeze(1) == columns.to(y.device)
    known = given.any(1)
    if not known.all():
        odd, among = int(y[~known][0]), columns.tolist()
        raise ValueError(f"label {odd} is not an output column that counts: {among}")
    yield given.to(p.dtype).expand_as(p)


class _Squares:
    """Sums of squared per-sample gradients; `x` is one sample that the networks run on."""

    def __init__(
        self,
        particles: Ensemble,
        names: Collection[str],
        log_p: Callable[[Any], Tensor],
        x: Tensor,
    ) -> None:
        self.particles = particles
        self.log_p = log_p
        self.parameters = {n: p.data for n, p in particles.named_parameters() if n in names}
        self.layers: dict[str, Layer]  # by place
        self.outputs: dict[str, Tensor]  # of those that are called, for a few samples
        self._find_layers(x)
        self.in_layers = {
            place: torch.zeros_like(layer.matrix(self.parameters))
            for place, layer in self.layers.items()
        }
        known = {name for layer in self.layers.values() for name, _ in layer.parts}
        self.elsewhere = {
            name: torch.zeros_like(p) for name, p in self.parameters.items() if name not in known
        }

    def _find_layers(self, x: Tensor) -> None:
        """Find layers that map samples one by one, in one call, with parameters of their own.

        A layer may have as many rows as there are samples by chance, so the networks run on two
        numbers of samples. Layers' parameters are detached in their own calls: one that still gets
        a gradient is used somewhere else.
        """
        _require_gradients(self.particles, self.parameters)
        layers = find_layers(self.particles, self.parameters)
        users = Counter(layers.values())
        fit = {
            place
            for place, layer in layers.items()
            if users[layer] == 1 and not getattr(self._module(place), "scale_grad_by_freq", False)
        }
        for samples in (2, 3):
            with torch.enable_grad(), Watcher(self.particles, layers, _whole_call) as run:
                outputs, seen = run(x.expand(samples, *x.shape[1:]))
                total = self.log_p(outputs).sum()
            trained = self._trained()
            gradients = _gradients(total, list(trained.values()))
            used = {name for name, g in zip(trained, gradients, strict=True) if g is not None}
            for place, layer in layers.items():
                calls = seen.get(place, [])
                apart = used.isdisjoint(name for name, _ in layer.parts)
                by_samples = all(t.shape[1:2] == (samples,) for call in calls for t in call)
                if len(calls) > 1 or not apart or not by_samples:
                    fit.discard(place)
        self.layers = {place: layer for place, layer in layers.items() if place in fit}
        self.outputs = {p: seen[p][0][1].detach() for p in self.layers if p in seen}

    def _module(self, place: str) -> nn.Module:
        return self.particles.template.get_submodule(place)

    def _trained(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.particles.named_parameters() if p.requires_grad}

    def add(self, x: Tensor, directions: Directions) -> None:
        """Add the squared gradients of every sample of x `[B, ...]`."""
        _require_gradients(self.particles, ())
        probes = {
            place: output.new_zeros(len(output), len(x), *output.shape[2:], requires_grad=True)
            for place, output in self.outputs.items()
        }
        with torch.enable_grad(), Watcher(self.particles, self.layers, _entering) as run:
            outputs, seen = run(x, probes)
            log_p = self.log_p(outputs)
            ways = list(directions(log_p))
            for way in ways:
                deltas = _gradients((way * log_p).sum(), list(probes.values()))
                for place, delta in zip(probes, deltas, strict=True):
                    if delta is not None:
                        call = (
                            self._module(place),
                            seen[place][0],
                            delta.to(self.in_layers[place].dtype),
                        )
                        self.in_layers[place] += _squares(self.layers[place], *call)
        if self.elsewhere:
            self._add_elsewhere(x, ways)

    def _add_elsewhere(self, x: Tensor, ways: list[Tensor]) -> None:
        """Add the squares of all other parameters, one sample at a time."""
        _require_gradients(self.particles, self.elsewhere)
        trained = self._trained()
        for sample in range(len(x)):
            part = slice(sample, sample + 1)
            with torch.enable_grad():
                log_p = self.log_p(self.particles(x[part]))
            for way in ways:
                gradients = _gradients((way[:, part] * log_p).sum(), list(trained.values()))
                for name, gradient in zip(trained, gradients, strict=True):
                    if gradient is not None:
                        self.elsewhere[name] += gradient.square()

    def by_name(self) -> Named:
        """The sums by the names of parameters, with their shapes."""
        found = dict(self.elsewhere)
        for place, total in self.in_layers.items():
            found |= self.layers[place].parameters(total, self.parameters)
        return found


def _whole_call(place: str, module: nn.Module, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    return x, output


def _entering(place: str, module: nn.Module, x: Tensor, output: Tensor) -> Tensor:
    return entering(module, x)


def _gradients(value: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Gradients of a scalar, which keeps its graph; None where it does not depend on a tensor."""
    if not value.requires_grad or not tensors:
        return [None] * len(tensors)
    return torch.autograd.grad(value, tensors, retain_graph=True, allow_unused=True)


@torch.no_grad()
def _squares(layer: Layer, module: nn.Module, inputs: Tensor, delta: Tensor) -> Tensor:
    """sum_b (a_b^T delta_b)^2 `[N, g, d, K]` over samples b; inputs and delta are `[N, B, ...]`."""
    n, samples = delta.shape[:2]

    def rows(part: slice) -> tuple[Tensor, Tensor]:
        """a `[g, N, b, R, d]` and delta `[g, N, b, R, K]` of a part of the samples."""
        a = layer.rows(module, inputs[:, part].flatten(0, 1)).to(delta.dtype)
        out = layer.leaving(module, delta[:, part].flatten(0, 1))
        count = len(range(samples)[part])
        return a.unflatten(1, (n, count, -1)), out.unflatten(1, (n, count, -1))

    a, out = rows(slice(0, 1))
    total = (a.mT @ out).squeeze(2)
    if a.shape[3] == 1:
        a, out = (side.squeeze(3).square() for side in rows(slice(None)))
        total = a.mT @ out
    else:
        total.zero_()
        chunk = max(1, SMALL // (a.numel() + out.numel() + total.numel()))
        for start in range(0, samples, chunk):
            a, out = rows(slice(start, start + chunk))
            total += (a.mT @ out).square_().sum(2)
    shape = n, layer.blocks, layer.width, layer.columns
    return total.transpose(0, 1).reshape(shape)
