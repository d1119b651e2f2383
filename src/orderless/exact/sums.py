"""The sums that determine a linear head, without any rounding, and samples counted one by one.

Features lie on a grid: whole numbers up to 2^bits of a power of two. Targets do too, and weights of
samples are multiples of 1/16. So the sums are those of integers. They do not depend on the order of
the samples, on batches or on machines, and samples can be removed without a trace.

Two kinds of samples are counted: those kept to choose the ridge by, and those in a ledger. Whether
a sample is kept depends on a hash of its inputs alone. So the kept samples are a function of the
multiset of samples, as the sums are: they can be merged, and removed with it.

The sums alone cannot tell whether a sample was ever added: most single samples that never were
could be taken away without any sum becoming impossible. A ledger can. It holds no data, but who has
it, its key and a sample can tell whether that sample was in: drop it before a head is published.
The key is the fingerprint of the head's maps, so that ledgers of equal heads add up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..ensemble.device import check_memory

WORD = 2.0**49  # in units
_MOST_WORDS = 2.0**52
_TILE = 512  # rows of the Gram matrix per product, about
_LARGE_TILE = 2048  # the same on a GPU, which smaller products do not fill
Column = tuple[int, int]  # (task, label); task is -1 if heads are not distinguished by task
LABELS = 1 << 32  # a column as a number, which sorts alike: (task + 1) * LABELS + label
_LITTLE = 2**26  # bytes that are there without asking


class Samples(NamedTuple):
    """S distinct samples in ascending order of their keys, and the total weight of each.

    A kept sample has its features; a ledger keeps 16 bytes per sample, a key and a weight.
    """

    keys: Tensor  # [S, 1 or 2], int64: a hash, and the column of a kept sample
    weights: Tensor  # [S], float64
    features: Tensor  # [N, S, M], float32, in units of the grid's limit; [0, S, 0] in a ledger

    @classmethod
    def of(cls, parts: list[Samples]) -> Samples:
        """Any samples: equal ones become one, and those whose weights add up to 0 none."""
        all_keys, all_weights, all_features = zip(*parts, strict=True)
        keys = torch.cat(all_keys)
        weights = torch.cat(all_weights)
        features = torch.cat(all_features, 1)
        order = torch.arange(len(keys), device=keys.device)
        for key in reversed(keys.unbind(1)):
            order = order[key[order].sort(stable=True).indices]
        ascending = keys[order]
        first = torch.ones_like(order, dtype=torch.bool)
        first[1:] = (ascending[1:] != ascending[:-1]).any(1)
        totals = weights.new_zeros(int(first.sum()))
        totals.index_add_(0, first.cumsum(0) - 1, weights[order])
        left = order[first][totals != 0]
        return cls(keys[left], totals[totals != 0], features[:, left])

    def plus(self, other: Samples, sign: int = 1) -> Samples:
        """Add or remove the samples of the other."""
        return Samples.of([self, other._replace(weights=sign * other.weights)])


def sample_hashes(key: str, x: Tensor, y: Tensor) -> list[bytes]:
    """A keyed hash of every sample (x, y), 16 bytes; the same for equal numbers of any type."""
    secret = hashlib.blake2b(key.encode()).digest()
    rows = torch.cat([_numbers(x).cpu(), _numbers(y).cpu()], dim=1).numpy()
    return [hashlib.blake2b(row.data, key=secret, digest_size=16).digest() for row in rows]


def _numbers(values: Tensor) -> Tensor:
    """Samples as float64 rows `[B, D]`; minus zero is zero."""
    return values.detach().reshape(len(values), -1).double() + 0.0


def sample_keys(x: Tensor) -> Tensor:
    """A fast hash of every sample's values, computed where they are: `[B]`, int64, the same for
    equal numbers of any type."""
    bits = _numbers(x).view(torch.int64)
    # multilinear hashing; the lower halves of small integers are all zeros
    return _mixed(((bits ^ _upper(bits, 32)) * _factors(bits.shape[1], x.device)).sum(1))


@lru_cache(maxsize=8)
def _factors(count: int, device: torch.device) -> Tensor:
    """Pseudo-random odd numbers."""
    return _mixed(torch.arange(1, count + 1, device=device)) | 1


def _mixed(keys: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of the key; products wrap at 2^64."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        keys = (keys ^ _upper(keys, shift)) * factor
    return keys ^ _upper(keys, 31)


def _upper(bits: Tensor, shift: int) -> Tensor:
    return (bits >> shift) & ((1 << (64 - shift)) - 1)


@dataclass(frozen=True)
class ExactSum:
    """A tensor of sums without rounding, in two float64 words.

        sum = low + high * word,    -word / 2 <= low < word / 2,    word = 2^49 units

    The unit is a power of two, and terms are multiples of a sixteenth of it. float64 represents
    every multiple up to 2^49 units: half of that is the low word's range, the other half is room
    for terms that are added before the next carry. Equal sums have equal words.
    """

    low: Tensor
    unit: float
    high: Tensor | None = None  # whole numbers; None if all of them are 0

    @classmethod
    def of(cls, values: Tensor, unit: float) -> ExactSum:
        """Numbers rounded to whole units; beyond 2^53 units every float64 is one already."""
        return cls((values / unit).round_().mul_(unit), unit).carried()

    def plus(self, other: ExactSum, sign: int = 1) -> ExactSum:
        """self + sign * other; both must be carried."""
        high = self.high
        if other.high is not None:
            high = sign * other.high if high is None else high + sign * other.high
        return replace(self, low=self.low.add(other.low, alpha=sign), high=high).carried()

    def carried(self) -> ExactSum:
        """The same sums with the low words in their range. Raise `ValueError` if one is too large
        for two words, or not finite."""
        word = WORD * self.unit
        if self.high is None and self.low.numel():
            smallest, largest = torch.stack(self.low.aminmax()).tolist()
            if -word / 2.0 <= smallest and largest < word / 2.0:
                return self
        carry = (self.low / word + 0.5).floor_()
        high = carry if self.high is None else self.high + carry
        most = float(high.abs().max()) if high.numel() else 0.0
        if not most < _MOST_WORDS:
            raise ValueError(
                f"sums must be finite and below {_MOST_WORDS * word:.1e}, got about "
                f"{most * word:.1e}: scale the data"
            )
        return replace(self, low=self.low - carry * word, high=high if high.any() else None)

    def value(self) -> Tensor:
        """The sums as float64; beyond 2^53 units they are rounded, each on its own."""
        return self.low if self.high is None else self.low + self.high * (WORD * self.unit)

    def map(self, change: Callable[[Tensor], Tensor]) -> ExactSum:
        """Apply a function to both words."""
        high = None if self.high is None else change(self.high)
        return replace(self, low=change(self.low), high=high)


@dataclass(frozen=True)
class Basis:
    """What sums are over, besides the data. Sums over the same can be added."""

    fingerprint: str  # of the maps, their grid, and all that their bits depend on
    feature_limit: float
    bits: int
    target_limit: float | None  # None: classes, as columns of 0 and 1
    calibration: int  # one sample in so many is kept; 0: none
    ledger: bool

    @property
    def classes(self) -> bool:
        return self.target_limit is None

    @property
    def target_unit(self) -> float:
        return 1.0 if self.target_limit is None else self.target_limit / 2.0**self.bits

    def check_same(self, other: Basis) -> None:
        """Raise `ValueError` if sums over the other do not fit here."""
        theirs = vars(other)
        for name, value in vars(self).items():
            if theirs[name] != value:
                raise ValueError(
                    f"{name} is {value!r} here and {theirs[name]!r} there: sums over different "
                    "feature maps or with other settings do not add up; build both heads alike (a "
                    "ledger can be dropped)"
                )


@dataclass
class HeadSums:
    """The sums over some data. N maps, M features and a constant one of value `feature_limit`, so
    that all entries of a sum have one unit; K columns of the head.

        gram     Phi^T Phi    [N, M+1, M+1], the lower triangles
        moments  Y^T Phi      [K, N, M+1]
        squares  sums of y^2  [K]; for classes, their numbers of samples
    """

    basis: Basis
    sums: dict[str, ExactSum]
    columns: Tensor  # [K], ascending, see `tasks_and_labels`
    samples: float = 0.0  # the sum of their weights
    counted: dict[str, Samples] = field(default_factory=dict)  # "ledger", "kept", if there are any

    @classmethod
    def empty(cls, basis: Basis, n: int, features: int, columns: Tensor) -> HeadSums:
        width = features + 1
        needed = 32 * n * width**2  # its sums, those of new samples, both together, and its factor
        if needed > _LITTLE:
            what = f"the matrices of {n} maps with {features} features"
            check_memory(needed, columns.device, what, "fewer features, or fewer maps")

        def zeros(unit: float, *shape: int) -> ExactSum:
            return ExactSum(torch.zeros(shape, dtype=torch.float64, device=columns.device), unit)

        unit = basis.feature_limit / 2.0**basis.bits
        target = basis.target_unit
        sums = {
            "gram": zeros(unit**2, n, width, width),
            "moments": zeros(unit * target, len(columns), n, width),
            "squares": zeros(target**2, len(columns)),
        }
        return cls(basis, sums, columns)

    @property
    def features(self) -> int:
        return self.sums["gram"].low.shape[2] - 1

    @property
    def counts(self) -> Tensor:
        """The sums of squared targets `[K]`: for classes, their numbers of samples."""
        return self.sums["squares"].value()

    def add(self, features: Tensor, targets: Tensor, weights: Tensor) -> None:
        """Add at most 4096 samples in place: features `[N, B, M]` on the grid, weights `[B]` of at
        most 16, and targets, indices into `columns` `[B]` (classes) or values `[B, K]`.

        With at most 16 bits these are 2^48 units, which a carried sum has room for.
        """
        gram = self.sums["gram"].low
        moments = self.sums["moments"].low
        squares = self.sums["squares"].low
        for number, values in enumerate(features):
            rows = pad(values.double(), (0, 1), value=self.basis.feature_limit)
            weighted = rows * weights.unsqueeze(1)
            for i, j in _tiles(gram[number]):
                gram[number, i:j, :j].addmm_(weighted[:, i:j].T, rows[:, :j])
            gram[number].tril_()
            if targets.dim() == 1:
                moments[:, number].index_add_(0, targets, weighted)
            else:
                moments[:, number].addmm_(targets.T, weighted)
        if targets.dim() == 1:
            squares.index_add_(0, targets, weights)
        else:
            squares.addmv_(targets.square().T, weights)
        self.sums = {name: words.carried() for name, words in self.sums.items()}
        self.samples += float(weights.sum())

    def plus(self, other: HeadSums, sign: int = 1) -> HeadSums:
        """The sums over both data sets, or over the first without the second. Raise `ValueError` if
        they cannot be added, or if the second cannot be in the first."""
        self.basis.check_same(other.basis)
        if other.columns.device != self.columns.device:
            other = other.map(lambda tensor: tensor.to(self.columns.device))
        same_values = self.basis.classes or len(self.columns) == len(other.columns)
        if self.features != other.features or not same_values:
            raise ValueError(
                f"samples had {self.features} features and {len(self.columns)} targets, and now "
                f"have {other.features} and {len(other.columns)}: give as many for every input"
            )
        columns = torch.cat([self.columns, other.columns]).unique()
        check_columns(columns)
        ours = self._with_columns(columns)
        theirs = other._with_columns(columns)
        total = HeadSums(
            self.basis,
            {name: words.plus(theirs[name], sign) for name, words in ours.items()},
            columns,
            self.samples + sign * other.samples,
            {name: own.plus(other.counted[name], sign) for name, own in self.counted.items()},
        )
        return total if sign > 0 else total._without_empty()

    def _without_empty(self) -> HeadSums:
        """The same after a deletion, without classes that have no samples left. Raise `ValueError`
        if these cannot be sums over data."""
        for name, samples in self.counted.items():
            if (samples.weights < 0).any():
                raise ValueError(
                    "the head never learned all of these samples, or some of them less often, as "
                    f"its list {name!r} shows: nothing was forgotten"
                )
        left = self.counts != 0
        diagonal = self.sums["gram"].map(lambda words: words.diagonal(dim1=1, dim2=2)).value()
        negative = (diagonal < 0).any() or (self.counts < 0).any()
        of_nobody = self.sums["moments"].value()[~left].any() or (
            self.samples == 0 and diagonal.any()
        )
        if negative or of_nobody:
            raise ValueError(
                "the head never learned all of these samples, as its sums show: nothing was "
                "forgotten"
            )
        if not self.basis.classes:
            return self
        fewer = {
            name: self.sums[name].map(lambda words: words[left]).carried()
            for name in ("moments", "squares")
        }
        return replace(self, sums=self.sums | fewer, columns=self.columns[left])

    def _with_columns(self, columns: Tensor) -> dict[str, ExactSum]:
        """The same sums with more columns."""
        if len(columns) == len(self.columns):
            return self.sums
        places = torch.searchsorted(columns, self.columns)

        def spread(words: Tensor) -> Tensor:
            zeros = words.new_zeros(len(columns), *words.shape[1:])
            return zeros.index_copy_(0, places, words)

        return self.sums | {name: self.sums[name].map(spread) for name in ("moments", "squares")}

    def of_map(self, number: int) -> tuple[Tensor, Tensor]:
        """A map's gram `[M+1, M+1]` (its lower triangle) and moments `[K, M+1]`, as float64."""
        gram = self.sums["gram"].map(lambda words: words[number])
        moments = self.sums["moments"].map(lambda words: words[:, number])
        return gram.value(), moments.value()

    def map(self, change: Callable[[Tensor], Tensor]) -> HeadSums:
        """Apply a function to every tensor."""
        return replace(
            self,
            sums={name: words.map(change) for name, words in self.sums.items()},
            columns=change(self.columns),
            counted={name: Samples(*map(change, own)) for name, own in self.counted.items()},
        )

    def relabelled(self, labels: list[int]) -> HeadSums:
        """The sums with label i renamed to `labels[i]`, ascending."""
        renamed = torch.tensor(labels, device=self.columns.device)

        def rename(columns: Tensor) -> Tensor:
            old = columns.remainder(LABELS)
            return columns - old + renamed[old]

        counted = dict(self.counted)
        if "kept" in counted:
            hashes, columns = counted["kept"].keys.unbind(1)
            keys = torch.stack([hashes, rename(columns)], 1)
            counted["kept"] = counted["kept"]._replace(keys=keys)
        return replace(self, columns=rename(self.columns), counted=counted)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, the two words of each sum, and the samples that are counted."""
        copied = self.map(torch.clone)
        return {
            "columns": copied.columns,
            "samples": whole(self.samples),
            **{name: vars(words) for name, words in copied.sums.items()},
            **{name: samples._asdict() for name, samples in copied.counted.items()},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], basis: Basis, device: torch.device) -> HeadSums:
        """The inverse of `state_dict`, on a device."""
        shared = cls(
            basis,
            {name: ExactSum(**state[name]) for name in ("gram", "moments", "squares")},
            state["columns"],
            state["samples"],
            {name: Samples(**state[name]) for name in ("ledger", "kept") if name in state},
        )
        return shared.map(lambda tensor: tensor.to(device, copy=True))


def tasks_and_labels(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The tasks and the labels `[K]` of columns as numbers."""
    return numbers.div(LABELS, rounding_mode="floor") - 1, numbers.remainder(LABELS)


def check_columns(columns: Tensor) -> None:
    """Raise `ValueError` if some have a task and others have none."""
    of_tasks = columns >= LABELS
    if of_tasks.any() and not of_tasks.all():
        raise ValueError(
            "samples with a task and samples without a task do not fit into one head: it has "
            "either a column per (task, label) or one per label"
        )


def _tiles(matrix: Tensor) -> list[tuple[int, int]]:
    """Ranges of rows (i, j); rows i to j and columns up to j cover the lower triangle."""
    size = len(matrix)
    count = max(1, size // (_LARGE_TILE if matrix.is_cuda else _TILE))
    edges = [size * part // count for part in range(count + 1)]
    return list(zip(edges, edges[1:], strict=False))


def whole(value: float) -> int | float:
    """A whole number as an int."""
    return int(value) if value == int(value) else value
