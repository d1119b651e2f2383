r"""The diagonal Fisher information of every particle's label distribution, sample by sample.

    F_p = 1/n sum_x E_{c ~ q(.|x)} (d log p(c|x) / d theta_p)^2

q is the network's own p ("exact": all classes, weighted by p; "sampled": one class drawn from p per
sample) or the given label ("empirical"). The square is inside the sum over samples; the squared
gradient of a batch is a different quantity.

Squared per-sample gradients without per-sample gradients: a Linear layer with inputs a and output
gradients delta has d/dW = delta_b a_b^T for sample b, so over a batch

    sum_b (d/dW)^2 = (delta^2)^T (a^2)                  one product per particle

A Conv2d is a Linear layer on its patches, with a sum over positions inside the square: one product
per sample. Every other parameter (normalisation, grouped convolutions, a Linear layer used twice or
on several rows per sample) gets per-sample gradients by `torch.func`, a few samples at a time, or
one at a time in networks with recurrent layers or PReLU, which `torch.func` does not know.

The networks run in evaluation mode, where samples do not mix. A network that mixes them even then
has no per-sample gradients, and the result is meaningless.
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...ensemble import Ensemble, random
from ...ensemble.pairs import Data, pairs
from ...ensemble.precision import matrix_precision
from ..base import Named
from .per_sample import Layer, Networks

KINDS = ("exact", "sampled", "empirical")
_LABELS = 1 << 22  # a random stream separate from dropout and resampling


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

    Memory, in units of the ensemble's parameters: 1 for the result, at most 1 more for per-sample
    gradients of parameters outside of Linear and Conv2d layers, and one batch's activations.

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
    parameters = dict(particles.named_parameters())
    totals = {name: torch.zeros_like(parameters[name].data) for name in names}
    held = particles.shard.count
    chunk = particles.chunk_size or held
    spans = [slice(start, start + chunk) for start in range(0, held, chunk)]
    layers: list[Layer] | None = None
    count = 0
    generators = [particles.device] if particles.device.type == "cuda" else []
    precise = matrix_precision("float32", particles.device)
    with torch.random.fork_rng(devices=generators), particles.evaluating(), precise:
        for x, y in _batches(data, samples, batch_size):
            x, y = x.to(particles.device), y.to(particles.device)
            if layers is None:
                layers = Networks(particles, slice(0, 1), logits, active).layers(x)
            for span in spans:
                networks = Networks(particles, span, logits, active)
                keys = networks.keys(_LABELS + draw, count, len(x))
                directions = partial(_directions, kind=kind, y=y, active=active, keys=keys)
                networks.add_squares({n: t[span] for n, t in totals.items()}, layers, x, directions)
            count += len(x)
    if not count:
        raise ValueError("the data holds no samples: the Fisher information needs at least one")
    return {name: total.div_(count) for name, total in totals.items()}


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
