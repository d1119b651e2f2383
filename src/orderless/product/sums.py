"""The sums over finished tasks: G_t, G_t W_t, W_t - W_0 and a few numbers; they have no order.

Every number is rounded once, to a multiple of 2^-60, and then added without rounding: equal terms
have equal sums to the bit, in any order, and a task that is subtracted leaves no trace.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..ensemble.device import check_memory
from ..ensemble.layers import BATCH_NORMS, Layer, Watcher, entering, find_layers, is_known
from ..ensemble.pairs import Data, is_pair, pairs
from ..ensemble.stacking import check_same_shapes, places_of
from ..exact.sums import ExactSum
from ..io import digest

UNIT = 2.0**-60
PATCHES = 1 << 24  # numbers in patches formed at a time, for all particles
INPUTS = 1 << 25  # numbers of inputs in a batch, for all particles
MOST = 512  # samples in a batch: activations may be larger than inputs
_GROUPS = ("grams", "cross", "changes", "statistics")
Columns = tuple[int, ...] | None  # output columns that a task's loss uses; None: all


@dataclass(frozen=True)
class TaskSums:
    """All sums over the finished tasks.

    A task whose loss uses some output columns adds nothing to the others, so sum_t G_t of the layer
    that computes the outputs is kept apart by the columns that tasks used.
    """

    grams: dict[tuple[str, Columns], ExactSum]  # sum_t G_t [N, g, d, d], by the name of a layer
    cross: dict[str, ExactSum]  # sum_t G_t W_t [N, g, d, K], by the name of a layer
    changes: dict[str, ExactSum]  # sum_t W_t - W_0 [N, g, d, K], by the name of a layer
    statistics: dict[str, ExactSum]  # sum_t n (m, var + m^2) [N, 2, C], by the place of a BatchNorm
    deaths: Tensor  # [N], the number of tasks in which the particle died
    samples: int  # sum_t n
    tasks: tuple[str, ...]  # fingerprints, sorted

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
        sums: dict[str, Any] = {
            group: _added(getattr(self, group), getattr(other, group), sign) for group in _GROUPS
        }
        if sign < 0:  # leave no trace
            grams = sums["grams"]
            sums["grams"] = {key: gram for key, gram in grams.items() if gram.value().any()}
        return TaskSums(
            **sums,
            deaths=self.deaths + sign * other.deaths,
            samples=self.samples + sign * other.samples,
            tasks=tuple(sorted(tasks.elements())),
        )

    def of_layer(self, name: str) -> list[tuple[list[int], Tensor]]:
        """sum_t G_t `[N, g, d, d]`, float64, for all columns that were used by the same tasks."""
        own = {used: gram for (layer, used), gram in self.grams.items() if layer == name}
        groups: dict[tuple[Columns, ...], list[int]] = {}
        for column in range(self.cross[name].low.shape[-1]):
            users = tuple(used for used in own if used is None or column in used)
            groups.setdefault(users, []).append(column)
        found = []
        for users, columns in groups.items():
            if users:
                total = own[users[0]]
                for used in users[1:]:
                    total = total.plus(own[used])
                found.append((columns, total.value()))
        return found

    def to(self, device: torch.device) -> TaskSums:
        """A copy on a device."""
        moved: dict[str, Any] = {
            group: {
                key: sums.map(lambda word: word.to(device, copy=True))
                for key, sums in getattr(self, group).items()
            }
            for group in _GROUPS
        }
        return replace(self, **moved, deaths=self.deaths.to(device, copy=True))

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and the two words of each sum."""
        copied = self.to(self.deaths.device)
        words = {
            group: {key: (s.low, s.high) for key, s in getattr(copied, group).items()}
            for group in _GROUPS
        }
        return {
            **words, "deaths": copied.deaths, "samples": self.samples, "tasks": self.tasks,
        }  # fmt: skip

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], layers: dict[str, Layer], device: torch.device
    ) -> TaskSums:
        """The inverse of `state_dict`. Raise `ValueError` if layers have other names or sizes."""
        sizes = {own.name: (own.blocks, own.width, own.columns) for own in layers.values()}
        found = {name: low[0] for name, (low, _) in state["cross"].items()}
        check_same_shapes(sizes, found, "this state is of another model")
        sums: dict[str, Any] = {
            group: {key: ExactSum(low, UNIT, high) for key, (low, high) in state[group].items()}
            for group in _GROUPS
        }
        rest = {name: state[name] for name in ("deaths", "samples", "tasks")}
        return cls(**sums, **rest).to(device)


def _added(
    ours: dict[Any, ExactSum], theirs: dict[Any, ExactSum], sign: int
) -> dict[Any, ExactSum]:
    """Sums or differences key by key; a missing sum is 0."""
    total = dict(ours)
    for key, sums in theirs.items():
        before = total[key] if key in total else sums.map(torch.zeros_like)
        total[key] = before.plus(sums, sign)
    return total


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
    _check_memory(layers, particles)
    return layers


def _check_memory(layers: dict[str, Layer], particles: Ensemble) -> None:
    """Raise `MemoryError` if seven matrices per block (sums, new sums, a task's) do not fit."""
    entries = sum(layer.blocks * layer.width**2 for layer in set(layers.values()))
    what = f"the input moments of {particles.n} particles"
    fix = "fewer particles, or narrower layers"
    check_memory(8 * 7 * particles.n * entries, particles.device, what, fix)


def running_statistics(particles: Ensemble) -> dict[str, tuple[str, str]]:
    """The names of the running mean and variance of every BatchNorm that has them, by its place."""
    names = places_of(particles.template)
    found = {}
    for place, module in particles.template.named_modules():
        if isinstance(module, BATCH_NORMS) and module.running_mean is not None:
            prefix = f"{place}." if place else ""
            found[place] = names[f"{prefix}running_mean"], names[f"{prefix}running_var"]
    return found


@dataclass
class Moments:
    """What layers saw of a task's data, in the networks as they are."""

    grams: dict[str, Tensor]  # G_t [N, g, d, d], by the name of a layer that was called
    heads: set[str]  # names of layers whose outputs are the networks'
    samples: int


@torch.no_grad()
def task_moments(particles: Ensemble, layers: dict[str, Layer], data: Data) -> Moments:
    """Compute the moments in one pass over the data, in evaluation mode."""
    portion = max(1, PATCHES // particles.n)

    def see(place: str, module: nn.Module, x: Tensor, output: Tensor) -> Tensor:
        return layers[place].gram(module, entering(module, x), portion)

    grams: dict[str, Tensor] = {}
    samples = 0
    with particles.evaluating(), Watcher(particles, layers, see) as run:
        for x in _batches(data, particles.n):
            try:
                _, seen = run(x.to(particles.device))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                shape = list(x.shape)
                raise ValueError(f"the networks do not take data {shape}: {error}") from error
            for place, calls in seen.items():
                name = layers[place].name
                for gram in calls:
                    grams.setdefault(name, gram.new_zeros(gram.shape)).add_(gram)
            samples += len(x)
    if not samples:
        raise ValueError("the data holds no samples: end_task needs at least one")
    return Moments(grams, {layers[place].name for place in run.last}, samples)


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
    """The sums of one task: G_t, G_t W_t and W_t - W_0 of the networks as they are, trained from
    `start`.

    A particle that is not `alive` adds 0, whatever its numbers.
    """
    moments = task_moments(particles, layers, data)
    now = {
        name: torch.where(alive.view(-1, *[1] * (tensor.dim() - 1)), tensor, start[name])
        for name, tensor in particles.tensors().items()
    }
    used = _columns(layers, moments, active)
    grams: dict[tuple[str, Columns], ExactSum] = {}
    cross: dict[str, ExactSum] = {}
    changes: dict[str, ExactSum] = {}
    fingerprint: list[Any] = [used]
    for layer in dict.fromkeys(layers.values()):
        name = layer.name
        weights = layer.matrix(now).double()  # W_t
        change = weights - layer.matrix(start).double()
        gram = _gram(layer, moments, change, alive)
        product = gram @ weights
        columns = used if name in moments.heads else None
        if columns is not None:
            unused = [column for column in range(layer.columns) if column not in columns]
            product[..., unused] = 0.0
            change[..., unused] = 0.0
        elif name in moments.heads:
            _warn_of_unchanged(change, weights)
        grams[name, columns] = ExactSum.of(gram, UNIT)
        cross[name] = ExactSum.of(product, UNIT)
        changes[name] = ExactSum.of(change, UNIT)
        fingerprint += [weights[0], gram[0].diagonal(dim1=-2, dim2=-1)]
    statistics = {}
    for place, names in running_statistics(particles).items():
        mean, variance = (now[name].double() for name in names)
        values = torch.stack([mean, variance + mean.square()], dim=1) * moments.samples
        statistics[place] = ExactSum.of(values, UNIT)
    _check_buffers(particles, start, now)
    dead = (~alive).long()
    tasks = (digest(fingerprint),)
    return TaskSums(grams, cross, changes, statistics, dead, moments.samples, tasks)


def _gram(layer: Layer, moments: Moments, change: Tensor, alive: Tensor) -> Tensor:
    """G_t `[N, g, d, d]`; 0 for a layer that was neither called nor trained."""
    if layer.name in moments.grams:
        return torch.where(alive.view(-1, 1, 1, 1), moments.grams[layer.name], 0.0)
    if change.any():
        raise ValueError(
            f"{layer.name!r} was trained, but no call of its layer was seen: the product cannot "
            "merge weights that are used without their module"
        )
    return change.new_zeros(*change.shape[:3], layer.width)


def _columns(
    layers: dict[str, Layer], moments: Moments, active: Tensor | Sequence[int] | None
) -> Columns:
    """The output columns that a task's loss uses, checked; None: all."""
    if active is None:
        return None
    columns = sorted({int(column) for column in active})
    heads = [layer for layer in layers.values() if layer.name in moments.heads]
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
            f"training did not change the output columns {unchanged}: if the task's loss does not "
            "use them, name those that it uses, end_task(data, active=...)",
            stacklevel=4,
        )


def _check_buffers(particles: Ensemble, start: dict[str, Tensor], now: dict[str, Tensor]) -> None:
    """Refuse buffers, besides running statistics, that training has changed."""
    known = {name for names in running_statistics(particles).values() for name in names}
    known |= {name.replace("running_mean", "num_batches_tracked") for name in known}
    for name in particles.particle_buffers():
        if name not in known and not torch.equal(now[name], start[name]):
            raise ValueError(f"the product cannot merge the buffer {name!r}: training changed it")
