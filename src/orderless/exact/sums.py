"""The sums that determine a linear head, without any rounding.

Features lie on a grid: whole numbers up to 2^bits of a power of two. Targets do too, and weights of
samples are multiples of 1/16. So the sums are those of integers. They do not depend on the order of
the samples, on batches or on machines, and samples can be removed without a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ..ensemble.device import check_memory
from .samples import Samples

WORD = 2.0**49  # in units
ROOM = WORD / 2.0  # in units: the most that may be added between two carries
_MOST_WORDS = 2.0**52
_TILE = 512  # rows of the Gram matrix per product, about
_LARGE_TILE = 2048  # the same on a GPU, which smaller products do not fill
Column = tuple[int, int]  # (task, label); task is -1 if heads are not distinguished by task
LABELS = 1 << 32  # a column as a number, which sorts alike: (task + 1) * LABELS + label
_LITTLE = 2**26  # bytes that are there without asking
_FEW = 128  # columns up to which targets are written out as 0 and 1


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
        low = torch.add(self.low, other.low.to(self.low.device), alpha=sign)
        high = self.high
        if other.high is not None:
            theirs = other.high.to(low.device)
            high = sign * theirs if high is None else torch.add(high, theirs, alpha=sign)
        return replace(self, low=low, high=high).carried()

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

    @property
    def most(self) -> float:
        """The total weight that can be summed exactly: 2^44 at 16 bits."""
        return 2.0 ** (76 - 2 * self.bits)

    def described(self) -> dict[str, Any]:
        """What a saved state says about it; the fingerprint holds the limit and the bits."""
        values = f"values within +-{self.target_limit}"
        return {
            "fingerprint": self.fingerprint,
            "targets": "classes" if self.target_limit is None else values,
            "calibration": self.calibration,
            "ledger": self.ledger,
        }

    def check_same(self, there: Mapping[str, Any]) -> None:
        """Raise `ValueError` if sums with another description do not fit here."""
        for name, value in self.described().items():
            if there[name] != value:
                raise ValueError(
                    f"{name} is {value!r} here and {there[name]!r} there: sums over different "
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
    columns: Tensor  # [K], ascending, see `column_numbers`
    samples: float = 0.0  # the sum of their weights
    clipped: float = 0.0  # values clipped by the grid
    counted: dict[str, Samples] = field(default_factory=dict)  # "ledger", "kept", if there are any

    @classmethod
    def empty(
        cls, basis: Basis, n: int, features: int, columns: Tensor, device: torch.device | str
    ) -> HeadSums:
        width = features + 1
        needed = 32 * n * width**2  # its sums, those of new samples, both together, and its factor
        if needed > _LITTLE:
            what = f"the matrices of {n} maps with {features} features"
            check_memory(needed, device, what, "fewer features, or fewer maps")
        unit = basis.feature_limit / 2.0**basis.bits
        shapes = {
            "gram": (unit**2, (n, width, width)),
            "moments": (unit * basis.target_unit, (len(columns), n, width)),
            "squares": (basis.target_unit**2, (len(columns),)),
        }
        sums = {
            name: ExactSum(torch.zeros(shape, dtype=torch.float64, device=device), unit)
            for name, (unit, shape) in shapes.items()
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
        """Add samples in place: features `[N, B, M]` on the grid, weights `[B]`, and targets,
        indices into `columns` `[B]` (classes) or values `[B, K]`."""
        if targets.dim() == 1 and len(self.columns) <= _FEW:
            targets = one_hot(targets, len(self.columns)).double()
        portion = max(1, int(ROOM / 4.0**self.basis.bits / float(weights.max())))
        for start in range(0, len(weights), portion):
            rows = slice(start, start + portion)
            self._add(features[:, rows], targets[rows], weights[rows])
            self.sums = {name: words.carried() for name, words in self.sums.items()}
        self.samples += float(weights.sum())

    def _add(self, features: Tensor, targets: Tensor, weights: Tensor) -> None:
        gram = self.sums["gram"].low
        moments = self.sums["moments"].low
        squares = self.sums["squares"].low
        _add_targets(squares.unsqueeze(1), targets, weights.unsqueeze(1), power=2)
        for number, values in enumerate(features):
            rows = pad(values.double(), (0, 1), value=self.basis.feature_limit)
            weighted = rows * weights.unsqueeze(1)
            for i, j in _tiles(gram[number]):
                gram[number, i:j, :j].addmm_(weighted[:, i:j].T, rows[:, :j])
            gram[number].tril_()
            _add_targets(moments[:, number], targets, weighted)

    def plus(self, other: HeadSums, sign: int = 1) -> HeadSums:
        """The sums over both data sets, or over the first without the second. Raise `ValueError` if
        they cannot be added, or if the second cannot be in the first."""
        self.basis.check_same(other.basis.described())
        samples = self.samples + sign * other.samples
        if samples > self.basis.most:
            raise ValueError(
                f"{samples:.0f} samples cannot be summed exactly with bits={self.basis.bits}: the "
                f"limit is {self.basis.most:.0f}; build the head with fewer bits"
            )
        same_values = self.basis.classes or len(self.columns) == len(other.columns)
        if self.features != other.features or not same_values:
            raise ValueError(
                f"samples had {self.features} features and {len(self.columns)} targets, and now "
                f"have {other.features} and {len(other.columns)}: give as many for every input"
            )
        columns = torch.cat([self.columns, other.columns.to(self.columns.device)]).unique()
        check_columns(columns)
        ours = self._with_columns(columns)
        theirs = other._with_columns(columns)
        total = HeadSums(
            self.basis,
            {name: words.plus(theirs[name], sign) for name, words in ours.items()},
            columns,
            samples,
            self.clipped + sign * other.clipped,
            {name: own.plus(other.counted[name], sign) for name, own in self.counted.items()},
        )
        if sign > 0:
            return total
        reason = total.impossible()
        if reason:
            raise ValueError(f"these samples were never all in it: {reason}. Nothing was forgotten")
        return total.of_columns(total.counts != 0) if self.basis.classes else total

    def impossible(self) -> str | None:
        """A reason why these cannot be sums over data, or None."""
        for name, samples in self.counted.items():
            missing = int((samples.weights < 0).sum())
            if missing:
                return (
                    f"{missing} of them are not among the samples of its {name!r}, or not so often"
                )
        diagonal = self.sums["gram"].map(lambda words: words.diagonal(dim1=1, dim2=2)).value()
        without = self.sums["moments"].value()[self.counts == 0]
        reasons = {
            "a sum of squared features would fall below 0": diagonal < 0,
            "a column would have fewer than 0 samples": self.counts < 0,
            "a column would have no samples but some of their features": without != 0,
            "no samples but some of their features would be left": (diagonal != 0)
            & (self.samples == 0),
        }
        return next((reason for reason, wrong in reasons.items() if wrong.any()), None)

    def _with_columns(self, columns: Tensor) -> dict[str, ExactSum]:
        """The same sums with more columns."""
        if len(columns) == len(self.columns):
            return self.sums
        places = torch.searchsorted(columns.to(self.columns.device), self.columns)

        def spread(words: Tensor) -> Tensor:
            zeros = words.new_zeros(len(columns), *words.shape[1:])
            return zeros.index_copy_(0, places, words)

        return self.sums | {name: self.sums[name].map(spread) for name in ("moments", "squares")}

    def of_columns(self, chosen: Tensor) -> HeadSums:
        """The sums of some columns only, a mask `[K]`."""
        fewer = {
            name: self.sums[name].map(lambda words: words[chosen]).carried()
            for name in ("moments", "squares")
        }
        return replace(self, sums=self.sums | fewer, columns=self.columns[chosen])

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
            counted={name: own.map(change) for name, own in self.counted.items()},
        )

    def relabelled(self, labels: list[int]) -> HeadSums:
        """The sums with label i renamed to `labels[i]`, ascending."""
        if self.basis.ledger:
            raise ValueError("the hashes of a ledger hold labels: drop_ledger() before renaming")
        pairs = [(task, labels[label]) for task, label in column_pairs(self.columns)]
        columns = column_numbers(pairs, self.columns.device)
        counted = dict(self.counted)
        if "kept" in counted:
            keys = counted["kept"].keys.clone()
            keys[:, 1] = columns[torch.searchsorted(self.columns, keys[:, 1].contiguous())]
            counted["kept"] = replace(counted["kept"], keys=keys)
        return replace(self, columns=columns, counted=counted)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, the two words of each sum, and the samples that are counted."""
        copied = self.map(torch.clone)
        return {
            "columns": [list(column) for column in column_pairs(self.columns)],
            "clipped": whole(self.clipped),
            "samples": whole(self.samples),
            **{name: (words.low, words.high) for name, words in copied.sums.items()},
            **{name: vars(samples) for name, samples in copied.counted.items()},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], basis: Basis, device: torch.device) -> HeadSums:
        """The inverse of `state_dict`, on a device."""
        n, width, _ = state["gram"][0].shape
        columns = column_numbers([(int(t), int(c)) for t, c in state["columns"]])
        check_columns(columns)
        made = cls.empty(basis, n, width - 1, columns, "meta")
        made.samples = float(state["samples"])
        made.clipped = float(state["clipped"])
        for name, zeros in made.sums.items():
            low, high = state[name]
            if low.shape != zeros.low.shape:
                raise ValueError(f"the {name} of a state cannot be {tuple(low.shape)}")
            made.sums[name] = replace(zeros, low=low, high=high)
        for name in ("ledger", "kept"):
            if name in state:
                made.counted[name] = Samples(**state[name])
        return made.map(lambda tensor: tensor.to(device, copy=True))


def _add_targets(sums: Tensor, targets: Tensor, rows: Tensor, power: int = 1) -> None:
    """Add Y^T rows, from targets `[B, K]` or the indices of their ones `[B]`."""
    if targets.dim() == 1:
        sums.index_add_(0, targets, rows)
    else:
        sums.addmm_(targets.pow(power).T, rows)


def column_numbers(columns: list[Column], device: Any = None) -> Tensor:
    numbers = [(task + 1) * LABELS + label for task, label in columns]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def column_pairs(numbers: Tensor) -> list[Column]:
    """The inverse of `column_numbers`."""
    tasks, labels = tasks_and_labels(numbers)
    return list(zip(tasks.tolist(), labels.tolist(), strict=True))


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
