"""The sums over finished tasks, and the networks merged from them, layer by layer.

The sums of G_t, G_t W_t, W_t - W_0 and a few numbers have no order. Every number is rounded once,
to a multiple of 2^-60, and then added without rounding: equal terms have equal sums to the bit, in
any order, and a task that is subtracted leaves no trace. The mean of the product of all tasks'
posteriors is

    W = (p_0 I + sum_t G_t)^-1 (p_0 A + sum_t G_t W_t)

The anchor A of the prior is W_0, or W_0 + sum_t (W_t - W_0): task arithmetic (Ilharco et al. 2023,
arXiv:2212.04089) where the data says little. Without the prior this is RegMean (Jin et al. 2023,
arXiv:2212.09849).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..consolidation.base import Data, is_pair, pairs
from ..ensemble import Ensemble
from ..ensemble.device import check_memory
from ..ensemble.layers import BATCH_NORMS, Layer, Watcher, entering, find_layers, is_known
from ..ensemble.stacking import places_of
from ..exact.sums import ExactSum
from ..io import digest

SHARES = {"start": 1e-3, "sum": 0.1}  # p_0 over the mean diagonal of sum_t G_t, by the anchor
UNIT = 2.0**-60
PATCHES = 1 << 24  # numbers in patches formed at a time, for all particles
INPUTS = 1 << 25  # numbers of inputs in a batch, for all particles
MOST = 512  # samples in a batch: activations may be larger than inputs
Columns = tuple[int, ...] | None  # output columns that a task's loss uses; None: all
Key = tuple[str, str, Columns]


@dataclass(frozen=True)
class TaskSums:
    """All sums over the finished tasks, by what they are, and the layer's name or place.

        "gram"        sum_t G_t               [N, g, d, d]    of a layer
        "cross"       sum_t G_t W_t           [N, g, d, K]    of a layer
        "change"      sum_t W_t - W_0         [N, g, d, K]    of a layer
        "statistics"  sum_t n (m, var + m^2)  [N, 2, C]       of a BatchNorm
        "samples"     sum_t n                 []
        "deaths"      the number of tasks in which a particle died  [N]

    A task whose loss uses some output columns adds nothing to the others, so the "gram" of the
    layer that computes the outputs is kept apart by the columns that tasks used.
    """

    sums: dict[Key, ExactSum]
    tasks: tuple[str, ...]  # fingerprints, sorted

    @classmethod
    def nothing(cls, particles: Ensemble) -> TaskSums:
        """The sums over no tasks."""
        deaths = torch.zeros(particles.n, dtype=torch.float64, device=particles.device)
        samples = deaths.new_zeros(())
        none = {("samples", "", None): samples, ("deaths", "", None): deaths}
        return cls({key: ExactSum(zeros, UNIT) for key, zeros in none.items()}, ())

    def checked(self) -> TaskSums:
        """These sums; raise `FloatingPointError` if every particle has died in a task."""
        if self.value("deaths").all():
            raise FloatingPointError(
                "no particle has lived through every task: lower the learning rate or drop this one"
            )
        return self

    def plus(self, other: TaskSums, sign: int = 1) -> TaskSums:
        """The sums over the tasks of both, or over those of the first without the second's."""
        ours = Counter(self.tasks)
        theirs = Counter(other.tasks)
        if sign < 0 and not theirs <= ours:
            raise ValueError(
                "only tasks that were added can be taken away: the second filter has a task that "
                "the first has not"
            )
        tasks = ours + theirs if sign > 0 else ours - theirs
        sums = dict(self.sums)
        for key, words in other.sums.items():
            before = sums[key] if key in sums else words.map(torch.zeros_like)
            sums[key] = before.plus(words, sign)
            if sign < 0 and key[0] == "gram" and not sums[key].value().any():
                del sums[key]  # leave no trace
        return TaskSums(sums, tuple(sorted(tasks.elements())))

    def value(self, what: str, name: str = "") -> Tensor:
        """A sum as float64."""
        return self.sums[what, name, None].value()

    def grams(self, layer: Layer) -> list[tuple[list[int], Tensor]]:
        """sum_t G_t `[N, g, d, d]` for all columns that were used by the same tasks."""
        grams = {
            used: words
            for (what, name, used), words in self.sums.items()
            if what == "gram" and name == layer.name
        }
        users: dict[tuple[Columns, ...], list[int]] = {}
        for column in range(layer.columns):
            group = tuple([used for used in grams if used is None or column in used])
            users.setdefault(group, []).append(column)
        totals = []
        for group, columns in users.items():
            if group:
                total = grams[group[0]]
                for used in group[1:]:
                    total = total.plus(grams[used])
                totals.append((columns, total.value()))
        return totals

    def to(self, device: torch.device) -> TaskSums:
        """A copy on a device."""
        sums = {
            key: words.map(lambda word: word.to(device, copy=True))
            for key, words in self.sums.items()
        }
        return replace(self, sums=sums)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and the two words of each sum."""
        copied = {key: words.map(torch.clone) for key, words in self.sums.items()}
        return {
            "sums": {key: (words.low, words.high) for key, words in copied.items()},
            "tasks": self.tasks,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device) -> TaskSums:
        """The inverse of `state_dict`, on a device."""
        sums = {key: ExactSum(low, UNIT, high) for key, (low, high) in state["sums"].items()}
        return cls(sums, state["tasks"]).to(device)


def merged_layers(particles: Ensemble) -> dict[str, Layer]:
    """The layers of all trained parameters, by their places; a parameter of none is refused."""
    trained = {name for name, p in particles.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("no parameter of the particles requires a gradient: nothing is learned")
    layers = find_layers(particles, trained)
    for name in sorted(trained - {name for layer in layers.values() for name, _ in layer.parts}):
        owner = particles.template.get_submodule(name.rpartition(".")[0])
        if is_known(owner):
            raise ValueError(
                f"the product cannot merge {name!r}: it is tied between layers that use it in "
                "different ways; untie it, or freeze it"
            )
        raise ValueError(
            f"the product cannot merge {name!r} of a {type(owner).__name__}: it knows Linear, "
            "Conv1d, Conv2d, Conv3d, BatchNorm, LayerNorm, RMSNorm, GroupNorm and Embedding "
            "layers; freeze it with requires_grad_(False)"
        )
    # the sums, the sums to be, and a task's: seven matrices of two words each at once
    entries = sum(layer.blocks * layer.width**2 for layer in set(layers.values()))
    what = f"the input moments of {particles.n} particles"
    fix = "fewer particles, or narrower layers"
    check_memory(8 * 7 * particles.n * entries, particles.device, what, fix)
    return layers


def running_statistics(particles: Ensemble) -> dict[str, tuple[str, str]]:
    """The names of the running mean and variance of every BatchNorm that has them, by its place."""
    names = places_of(particles.template)
    statistics = {}
    for place, module in particles.template.named_modules():
        if isinstance(module, BATCH_NORMS) and module.running_mean is not None:
            prefix = f"{place}." if place else ""
            statistics[place] = names[f"{prefix}running_mean"], names[f"{prefix}running_var"]
    return statistics


@torch.no_grad()
def task_moments(
    particles: Ensemble, layers: dict[str, Layer], data: Data
) -> tuple[dict[str, Tensor], set[str], int]:
    """One pass over a task's data with the networks as they are, in evaluation mode: G_t
    `[N, g, d, d]` by the name of every layer that was called, the names of the layers whose outputs
    are the networks', and the number of samples."""
    portion = max(1, PATCHES // particles.n)

    def see(place: str, module: nn.Module, x: Tensor, output: Tensor) -> Tensor:
        return layers[place].gram(module, entering(module, x), portion)

    grams: dict[str, Tensor] = {}
    samples = 0
    with particles.evaluating(), Watcher(particles, layers, see) as run:
        for x in _batches(data, particles.n):
            _, seen = run(x.to(particles.device))
            for place, calls in seen.items():
                name = layers[place].name
                for gram in calls:
                    grams[name] = grams[name] + gram if name in grams else gram
            samples += len(x)
    if not samples:
        raise ValueError("the data holds no samples: end_task needs at least one")
    return grams, {layers[place].name for place in run.last}, samples


def _batches(data: Data, n: int) -> Iterator[Tensor]:
    """Inputs: those given, or those of one pair split into batches of bounded memory."""
    for x, _ in pairs(data):
        most = min(MOST, INPUTS // max(1, n * x[:1].numel())) if is_pair(data) else len(x)
        yield from x.split(max(1, most))


@torch.no_grad()
def task_sums(
    particles: Ensemble,
    layers: dict[str, Layer],
    start: dict[str, Tensor],
    data: Data,
    active: Tensor | Sequence[int] | None,
    alive: Tensor,
) -> TaskSums:
    """The sums of one task, from the networks as they are, trained from `start`.

    A particle that is not `alive` adds 0, whatever its numbers.
    """
    grams, heads, samples = task_moments(particles, layers, data)
    now = {
        name: torch.where(alive.view(-1, *[1] * (tensor.dim() - 1)), tensor, start[name])
        for name, tensor in particles.tensors().items()
    }
    used = _columns([layer for layer in layers.values() if layer.name in heads], active)
    terms: dict[Key, Tensor] = {
        ("samples", "", None): alive.new_tensor(samples, dtype=torch.float64),
        ("deaths", "", None): (~alive).double(),
    }
    fingerprint: list[Any] = [used]
    for layer in dict.fromkeys(layers.values()):
        weights = layer.matrix(now).double()  # W_t
        change = weights - layer.matrix(start).double()
        gram = _gram(layer, grams, change, alive)  # G_t
        cross = gram @ weights
        is_head = layer.name in heads
        if is_head and used is not None:
            unused = [column for column in range(layer.columns) if column not in used]
            cross[..., unused] = 0.0
            change[..., unused] = 0.0
        elif is_head:
            _warn_of_unchanged(change, weights)
        terms["gram", layer.name, used if is_head else None] = gram
        terms["cross", layer.name, None] = cross
        terms["change", layer.name, None] = change
        fingerprint += [weights[0], gram[0].diagonal(dim1=-2, dim2=-1)]
    terms |= _statistics(particles, start, now, samples)
    sums = {key: ExactSum.of(term, UNIT) for key, term in terms.items()}
    return TaskSums(sums, (digest(fingerprint),))


def _statistics(
    particles: Ensemble, start: dict[str, Tensor], now: dict[str, Tensor], samples: int
) -> dict[Key, Tensor]:
    """n (m, var + m^2) of every BatchNorm; any other buffer that training changed is refused."""
    terms: dict[Key, Tensor] = {}
    known = set()
    for place, names in running_statistics(particles).items():
        mean, variance = (now[name].double() for name in names)
        terms["statistics", place, None] = samples * torch.stack(
            [mean, variance + mean.square()], dim=1
        )
        known |= {*names, names[0].replace("running_mean", "num_batches_tracked")}
    for name in particles.particle_buffers():
        if name not in known and not torch.equal(now[name], start[name]):
            raise ValueError(f"the product cannot merge the buffer {name!r}: training changed it")
    return terms


def _gram(layer: Layer, grams: dict[str, Tensor], change: Tensor, alive: Tensor) -> Tensor:
    """G_t `[N, g, d, d]`; 0 for a layer that was neither called nor trained."""
    if layer.name in grams:
        return torch.where(alive.view(-1, 1, 1, 1), grams[layer.name], 0.0)
    if change.any():
        raise ValueError(
            f"{layer.name!r} was trained, but no call of its layer was seen: the product cannot "
            "merge weights that are used without their module"
        )
    return change.new_zeros(*change.shape[:3], layer.width)


def _columns(heads: list[Layer], active: Tensor | Sequence[int] | None) -> Columns:
    """The output columns that a task's loss uses, checked; None: all."""
    if active is None:
        return None
    columns = sorted({int(column) for column in active})
    if not heads or heads[0].blocks != 1:
        raise ValueError(
            f"the product can leave output columns out (active={columns}) only where the outputs "
            "come straight from a Linear layer"
        )
    count = heads[0].columns
    if not columns or not 0 <= columns[0] <= columns[-1] < count:
        raise ValueError(f"active must name output columns from 0 to {count - 1}, got {columns}")
    return None if len(columns) == count else tuple(columns)


def _warn_of_unchanged(change: Tensor, weights: Tensor) -> None:
    """Warn about output columns that the task's loss seems not to use."""
    same = ~change.flatten(0, 2).any(0) & weights.flatten(0, 2).any(0)
    if same.any():
        unchanged = same.nonzero().flatten().tolist()
        warnings.warn(
            f"training did not change the output columns {unchanged}: train the network, or name "
            "the columns that the task's loss uses, PosteriorProduct.end_task(data, active=...)",
            stacklevel=4,
        )


@dataclass(frozen=True)
class Prior:
    """N(A, I / p_0) for every layer; p_0 is a share of the mean diagonal of sum_t G_t if None."""

    precision: float | None
    anchor: str

    def __post_init__(self) -> None:
        if self.precision is not None and not 0 < self.precision < float("inf"):
            raise ValueError(f"prior_precision must be positive, got {self.precision}")
        if self.anchor not in SHARES:
            raise ValueError(f"anchor must be 'start' or 'sum', got {self.anchor!r}")


def posterior_mean(gram: Tensor, cross: Tensor, anchor: Tensor, prior: Prior, name: str) -> Tensor:
    """(p_0 I + sum G)^-1 (p_0 A + sum G W) `[g, d, K]` of a layer.

    `gram` `[g, d, d]`, `cross` and `anchor` `[g, d, K]`.
    """
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    if not diagonal.any():  # no data
        return anchor
    p_0 = prior.precision
    if p_0 is None:
        p_0 = SHARES[prior.anchor] * float(diagonal.mean())
    precision = gram + p_0 * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(precision)
    pivot = factor.diagonal(dim1=-2, dim2=-1).square().amin()
    rounding = torch.finfo(gram.dtype).eps * gram.shape[-1] * diagonal.amax()
    if failed.any() or pivot <= rounding:
        raise ValueError(
            f"the sums of {name!r} cannot be inverted with prior_precision={prior.precision}: use "
            f"a larger one, or None for {SHARES[prior.anchor]:g} of their mean diagonal"
        )
    return torch.cholesky_solve(p_0 * anchor + cross, factor)


def load_merged(
    particles: Ensemble, layers: dict[str, Layer], sums: TaskSums, prior: Prior
) -> None:
    """Write the merged parameters and buffers into particles, which are at the start."""
    start = particles.tensors()
    merged: dict[str, Tensor] = {}
    for layer in dict.fromkeys(layers.values()):
        matrix = layer.matrix(start).double()
        cross = sums.value("cross", layer.name)
        if prior.anchor == "sum":
            matrix = matrix + sums.value("change", layer.name)
        for columns, gram in sums.grams(layer):
            for i in range(particles.n):  # one at a time, for memory
                anchor = matrix[i][..., columns]
                mean = posterior_mean(gram[i], cross[i][..., columns], anchor, prior, layer.name)
                matrix[i][..., columns] = mean
        merged |= layer.parameters(matrix, start)
    for place, (mean_name, variance_name) in running_statistics(particles).items():
        mean, square = (sums.value("statistics", place) / sums.value("samples")).unbind(1)
        merged[mean_name] = mean
        merged[variance_name] = (square - mean.square()).clamp(min=0.0)
    load_tensors(particles, merged)


@torch.no_grad()
def load_tensors(particles: Ensemble, values: dict[str, Tensor]) -> None:
    """Write parameters and buffers into particles."""
    tensors = particles.tensors()
    for name, value in values.items():
        tensors[name].copy_(value)
        tensors[name].grad = None


def merge(
    start: nn.Module,
    networks: Iterable[tuple[nn.Module, Data]],
    prior_precision: float | None = None,
    anchor: str = "start",
) -> nn.Module:
    """Merge networks that were trained from one start, each on its own data, into one.

    What `PosteriorProduct` computes from tasks, to the bit, for networks that exist already. The
    order of the networks has no effect.

    Args:
        start: the network from which all were trained. Parameters that do not require a gradient
            here are not merged, and must not differ.
        networks: pairs of a network and its data: two tensors (x, y), or batches of such pairs.
            Labels are not used.
        prior_precision: p_0; None: a share of the mean diagonal of sum_t G_t, layer by layer: 1e-3
            with the anchor "start", 0.1 with "sum".
        anchor: to what the prior pulls: `"start"`, or `"sum"`, the start plus the changes of all
            networks. "sum" is better for networks whose data is alike; see `PosteriorProduct`.

    >>> start = torch.nn.Linear(2, 1)
    >>> data = torch.randn(8, 2), torch.zeros(8)
    >>> ol.merge(start, [(torch.nn.Linear(2, 1), data), (torch.nn.Linear(2, 1), data)])
    Linear(in_features=2, out_features=1, bias=True)
    """
    prior = Prior(prior_precision, anchor)
    _check_network(start)
    particles = Ensemble.from_modules([start])
    layers = merged_layers(particles)
    first = {name: tensor.detach().clone() for name, tensor in particles.tensors().items()}
    trained = {name for layer in layers.values() for name, _ in layer.parts}
    alive = torch.ones(1, dtype=torch.bool, device=particles.device)
    sums = TaskSums.nothing(particles)
    for number, (network, data) in enumerate(networks):
        _check_network(network)
        particles.load_particle(0, network)
        for name, parameter in particles.named_parameters():
            if name not in trained and not torch.equal(parameter, first[name]):
                raise ValueError(
                    f"{name!r} does not require a gradient in start, but network {number} has "
                    "other values there: make it trainable in start, or copy it from there"
                )
        sums = sums.plus(task_sums(particles, layers, first, data, None, alive))
    if not sums.tasks:
        raise ValueError("merge needs at least one network, got none")
    load_tensors(particles, first)
    load_merged(particles, layers, sums, prior)
    return particles[0]


def _check_network(network: object) -> None:
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"merge takes networks, got {type(network).__name__}: load a state dict into one with "
            "network.load_state_dict"
        )
