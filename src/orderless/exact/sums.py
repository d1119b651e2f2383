"""The sums that determine a linear head, without any rounding.

Features lie on a grid: whole numbers up to 2^bits of a power of two. Targets do too, and weights of
samples are multiples of 1/16. So the sums are those of integers. They do not depend on the order of
the samples, on batches or on machines, and samples can be removed without a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ..ensemble.device import available_memory
from .ledger import Ledger
from .targets import column_numbers, column_pairs

WORD = 2.0**49  # in units
ROOM = WORD / 2.0  # in units: the most that may be added between two carries
_MOST_WORDS = 2.0**52
_TILE = 512  # rows of the Gram matrix per product, about
_LARGE_TILE = 2048  # the same on a GPU, which smaller products do not fill
_FEW = 512  # columns up to which a product is the fastest way to add moments on a GPU
_ALIGNED = 8  # products are faster if the length of rows is a multiple of this
_LITTLE = 2**26  # bytes that are there without asking
_HASHED = 2**22  # values hashed at a time


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
        largest = float(high.abs().max()) if high.numel() else 0.0
        if not largest < _MOST_WORDS:
            raise ValueError(
                f"sums must be finite and below {_MOST_WORDS * word:.1e}, got about "
                f"{largest * word:.1e}: scale the data"
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
class KeptSamples:
    """S samples in ascending order of (key, column), each pair once; 2 N M bytes each.

    Whether a sample is kept depends on a hash of its inputs alone. So the kept samples are a
    function of the multiset of samples, as the sums are: they can be merged, and removed with it.
    """

    keys: Tensor  # [S]
    columns: Tensor  # [S], see `column_numbers`
    weights: Tensor  # [S], float64
    features: Tensor  # [N, S, M], float16, in units of the grid's limit

    @classmethod
    def of(
        cls, x: Tensor, features: Tensor, columns: Tensor, weights: Tensor, every: int
    ) -> KeptSamples:
        """Those of some samples whose hash is a multiple of `every`."""
        keys = keys_of(x).to(columns.device)
        some = keys % every == 0
        found = cls(keys[some], columns[some], weights[some], features[:, some].half())
        none = cls(keys[:0], columns[:0], weights[:0], found.features[:, :0])
        return none.plus(found)

    def plus(self, other: KeptSamples, sign: int = 1) -> KeptSamples:
        """Add or remove the samples of the other; weights of equal samples add up."""
        if not len(other.keys):
            return self
        if other.keys.device != self.keys.device:
            other = other.to(self.keys.device)
        keys = torch.cat([self.keys, other.keys])
        columns = torch.cat([self.columns, other.columns])
        distinct, place = torch.stack([keys, columns], 1).unique(dim=0, return_inverse=True)
        weights = torch.cat([self.weights, sign * other.weights])
        weights = weights.new_zeros(len(distinct)).index_add_(0, place, weights)
        # the index of one of the equal samples
        source = torch.empty_like(distinct[:, 0])
        source[place] = torch.arange(len(place), device=place.device)
        left = weights != 0
        features = torch.cat([self.features, other.features], 1)[:, source[left]]
        return KeptSamples(distinct[left, 0], distinct[left, 1], weights[left], features)

    def to(self, device: torch.device) -> KeptSamples:
        return KeptSamples(*[getattr(self, field.name).to(device) for field in fields(self)])

    def state_dict(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name).clone() for field in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], device: torch.device) -> KeptSamples:
        return cls(*[state[field.name].clone() for field in fields(cls)]).to(device)


def keys_of(x: Tensor) -> Tensor:
    """A hash of every sample's values: `[B]`, int64, the same for equal numbers of any type."""
    flat = x.reshape(len(x), -1)
    factors = _factors(flat.shape[1], x.device)
    keys = []
    for part in flat.split(max(1, _HASHED // max(1, flat.shape[1]))):
        bits = (part.double() + 0.0).view(torch.int64)  # + 0: minus zero is zero
        # multilinear hashing; the lower halves of small integers are all zeros
        keys.append(((bits ^ _upper(bits, 32)) * factors).sum(1))
    return _mixed(torch.cat(keys))


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
class Units:
    """The grids of features and targets.

    The constant feature has the value `feature_limit`, so all entries of a sum have one unit.
    """

    feature_limit: float
    target_unit: float
    bits: int
    classes: bool  # targets are columns of 0 and 1

    @property
    def feature(self) -> float:
        return self.feature_limit / 2.0**self.bits

    @property
    def most(self) -> float:
        """The total weight that can be summed exactly: 2^44 at 16 bits."""
        return 2.0 ** (76 - 2 * self.bits)


@dataclass
class HeadSums:
    """The sums over some data. N maps, M features, K head columns.

    P is M + 1, for the constant, rounded up to a multiple of 8; what is beyond the constant is 0.
    """

    units: Units
    features: int  # M
    gram: ExactSum  # Phi^T Phi: [N, P, P], of which only the lower triangles mean anything
    moments: ExactSum  # Y^T Phi: [N, K, P]
    squares: ExactSum  # sums of y^2: [K]; for classes, their numbers of samples
    columns: Tensor  # [K], ascending, see `column_numbers`
    samples: float = 0.0  # the sum of their weights
    clipped: float = 0.0  # values clipped by the grid
    pending: float = 0.0  # weight added since the last carry
    kept: KeptSamples | None = None  # None if none are kept
    ledger: Ledger | None = None  # None if none is kept

    @classmethod
    def empty(
        cls, n: int, features: int, units: Units, columns: Tensor, device: torch.device
    ) -> HeadSums:
        check_memory(n, features, device)
        size = features + 1 + -(features + 1) % _ALIGNED
        options: Any = {"dtype": torch.float64, "device": device}
        target = units.target_unit
        return cls(
            units,
            features,
            ExactSum(torch.zeros(n, size, size, **options), units.feature**2),
            ExactSum(torch.zeros(n, len(columns), size, **options), units.feature * target),
            ExactSum(torch.zeros(len(columns), **options), target**2),
            columns,
        )

    def add(self, features: Tensor, targets: Tensor, weights: Tensor) -> None:
        """Add samples in place: features `[N, B, M]` on the grid, weights `[B]`, and targets,
        indices into `columns` `[B]` (classes) or values `[B, K]`."""
        largest = float(weights.max())
        portion = max(1, int(ROOM / 4.0**self.units.bits / largest))
        for start in range(0, len(weights), portion):
            rows = slice(start, start + portion)
            self._add(features[:, rows], targets[rows], weights[rows])

    def _add(self, features: Tensor, targets: Tensor, weights: Tensor) -> None:
        mass = float(weights.sum())
        if (self.pending + mass) * 4.0**self.units.bits > ROOM:
            self.carry()
        self.pending += mass
        self.samples += mass
        if self.units.classes:
            self.squares.low.index_add_(0, targets, weights)
        else:
            self.squares.low.addmv_(targets.square().T, weights)
        plain = bool((weights == 1.0).all())
        for values, gram, moments in zip(features, self.gram.low, self.moments.low, strict=True):
            rows = weights.new_zeros(len(weights), len(gram))
            rows[:, : self.features] = values
            rows[:, self.features] = self.units.feature_limit
            weighted = rows if plain else rows * weights.unsqueeze(1)
            for i, j in _tiles(gram):
                gram[i:j, :j].addmm_(weighted[:, i:j].T, rows[:, :j])
            self._add_moments(moments, targets, weighted)

    def _add_moments(self, moments: Tensor, targets: Tensor, weighted: Tensor) -> None:
        if not self.units.classes:
            moments.addmm_(targets.T, weighted)
        elif targets.is_cuda and len(moments) <= _FEW:
            moments.addmm_(one_hot(targets, len(moments)).double().T, weighted)
        else:
            moments.index_add_(0, targets, weighted)

    def carry(self) -> HeadSums:
        """Carry where needed, so that equal sums are equal words. Returns itself."""
        self.gram = self.gram.carried()
        self.moments = self.moments.carried()
        self.squares = self.squares.carried()
        self.pending = 0.0
        return self

    def plus(self, other: HeadSums, sign: int = 1) -> HeadSums:
        """The sums over both data sets, or over the first without the second."""
        columns = torch.cat([self.columns, other.columns.to(self.columns.device)]).unique()
        ours = self._with_columns(columns)
        theirs = other._with_columns(columns)
        both_keep = self.kept is not None and other.kept is not None
        both_list = self.ledger is not None and other.ledger is not None
        total = replace(
            self,
            gram=self.gram.plus(other.gram, sign),
            moments=ours.moments.plus(theirs.moments, sign),
            squares=ours.squares.plus(theirs.squares, sign),
            columns=columns,
            samples=self.samples + sign * other.samples,
            clipped=self.clipped + sign * other.clipped,
            kept=self.kept.plus(other.kept, sign) if both_keep else None,  # type: ignore[union-attr,arg-type]
            ledger=self.ledger.plus(other.ledger, sign) if both_list else None,  # type: ignore[union-attr,arg-type]
        )
        return total._without_empty_columns() if sign < 0 and self.units.classes else total

    def _with_columns(self, columns: Tensor) -> HeadSums:
        """The same sums with more columns."""
        if len(columns) == len(self.columns):
            return self
        columns = columns.to(self.columns.device)
        places = torch.searchsorted(columns, self.columns)

        def spread(sums: Tensor, dim: int) -> Tensor:
            shape = *sums.shape[:dim], len(columns), *sums.shape[dim + 1 :]
            return sums.new_zeros(shape).index_copy_(dim, places, sums)

        moments = self.moments.map(lambda sums: spread(sums, 1))
        squares = self.squares.map(lambda sums: spread(sums, 0))
        return replace(self, moments=moments, squares=squares, columns=columns)

    def _without_empty_columns(self) -> HeadSums:
        """The same sums without columns that have neither samples nor a trace of any."""
        left = (self.squares.value() != 0) | (self.moments.value() != 0).any(2).any(0)
        if left.all():
            return self
        moments = self.moments.map(lambda sums: sums[:, left]).carried()
        squares = self.squares.map(lambda sums: sums[left]).carried()
        return replace(self, moments=moments, squares=squares, columns=self.columns[left])

    def impossible(self) -> str | None:
        """A reason why these cannot be sums over data, or None."""
        diagonal = self.gram.map(lambda words: words.diagonal(dim1=1, dim2=2)).value()
        counts = self.squares.value()
        if bool((diagonal < 0).any()):
            return "a sum of squared features would fall below 0"
        if bool((counts < 0).any()):
            return "a column would have fewer than 0 samples"
        if self.clipped < 0:
            return "fewer than 0 values would be clipped"
        if self.samples == 0 and bool(diagonal.any()):
            return "no samples but some of their features would be left"
        if bool(self.moments.value()[:, counts == 0].any()):
            return "a column would have no samples but some of their features"
        if self.kept is not None and bool((self.kept.weights < 0).any()):
            return "a sample would be in it fewer than 0 times"
        return None

    def of_map(self, number: int) -> tuple[Tensor, Tensor]:
        """A map's gram `[M+1, M+1]` (its lower triangle) and moments `[K, M+1]`, as float64."""
        size = self.features + 1
        gram = self.gram.map(lambda words: words[number, :size, :size])
        moments = self.moments.map(lambda words: words[number, :, :size])
        return gram.value(), moments.value()

    def state_dict(self) -> dict[str, Any]:
        size = self.features + 1
        words = {
            "gram": self.gram.map(lambda sums: sums[:, :size, :size].tril()),
            "moments": self.moments.map(lambda sums: sums[:, :, :size].clone()),
            "squares": self.squares.map(torch.clone),
        }
        state: dict[str, Any] = {name: sums.low for name, sums in words.items()}
        carries = {f"{name}_high": s.high for name, s in words.items() if s.high is not None}
        state |= {
            **carries,
            "columns": [list(column) for column in column_pairs(self.columns)],
            "clipped": whole(self.clipped),
            "samples": whole(self.samples),
        }
        if self.kept is not None:
            state["kept"] = self.kept.state_dict()
        if self.ledger is not None:
            state["ledger"] = self.ledger.state_dict()
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any], units: Units, device: torch.device) -> HeadSums:
        """The inverse of `state_dict`, on a device."""
        n, size, _ = state["gram"].shape
        columns = column_numbers([(int(t), int(c)) for t, c in state["columns"]], device)
        made = cls.empty(n, size - 1, units, columns, device)
        beyond = made.gram.low.shape[2] - size

        def words(name: str, like: ExactSum, change: Callable[[Tensor], Tensor]) -> ExactSum:
            high = state.get(f"{name}_high")
            loaded = replace(like, low=state[name], high=high).map(lambda t: t.to(device))
            changed = loaded.map(change)
            if changed.low.shape != like.low.shape:
                raise ValueError(f"the {name} of a state cannot be {tuple(state[name].shape)}")
            return changed

        def whole_matrix(lower: Tensor) -> Tensor:
            return pad(lower + lower.tril(-1).mT, (0, beyond, 0, beyond))

        made.gram = words("gram", made.gram, whole_matrix)
        made.moments = words("moments", made.moments, lambda sums: pad(sums, (0, beyond)))
        made.squares = words("squares", made.squares, torch.clone)
        made.samples = float(state["samples"])
        made.clipped = float(state["clipped"])
        if "kept" in state:
            made.kept = KeptSamples.from_state(state["kept"], device)
        if "ledger" in state:
            made.ledger = Ledger.from_state(state["ledger"])
        return made.carry()


def check_memory(n: int, features: int, device: torch.device) -> None:
    """Raise `MemoryError` if four matrices `[M, M]` per map do not fit: its sums, those of new
    samples, both together, and its factor."""
    needed = 32 * n * (features + 1) ** 2
    available = available_memory(device) if needed > _LITTLE else None
    if available is not None and needed > available:
        fits = int((available / (32 * n)) ** 0.5)
        raise MemoryError(
            f"{n} maps with {features} features need {needed / 2**30:.1f} GiB of matrices but "
            f"{available / 2**30:.1f} GiB are free on {device}: use at most {fits} features, or "
            "fewer maps"
        )


def _tiles(matrix: Tensor) -> list[tuple[int, int]]:
    """Ranges of rows (i, j); rows i to j and columns up to j cover the lower triangle."""
    size = len(matrix)
    step = _LARGE_TILE if matrix.is_cuda else _TILE
    return [(start, min(start + step, size)) for start in range(0, size, step)]


def whole(value: float) -> int | float:
    """A whole number as an int."""
    return int(value) if value == int(value) else value
