"""An algebra of data: samples can be added and removed, and filters merged, exactly.

The state is a function of the multiset of samples alone. After any sequence of updates, deletions,
batches and merges the sums are those of one update with the remaining samples, to the bit; see
`statistics.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from ..features.exact import round_inputs
from ..filters.base import Predictor
from .leave_one_out import KeptSamples, keys_of
from .quantize import Block, GridFeatures, GridWarnings
from .statistics import HeadStatistics, Units, whole
from .targets import Classes, Column, Values, column_numbers, column_pairs, tasks_and_labels

# entries `[N, ...]` of a state
_OF_PARTICLES = ("gram", "moments", "gram_carry", "moments_carry", "kept_features")
LARGEST_WEIGHT = 16.0
_LOOKED_AT = 64  # samples of each update for which warnings are given
Method = TypeVar("Method", bound=Callable[..., Any])


def in_plain_mode(method: Method) -> Method:
    """Run a filter's method outside of autocast, which would compute features in half precision,
    autograd, and inference mode, whose sums could not be changed later."""

    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        no_autocast = torch.autocast(self.particles.device.type, enabled=False)
        with torch.inference_mode(False), torch.no_grad(), no_autocast:
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]


class DataAlgebra(Predictor):
    """Sums over data as seen through feature maps: `update`, `forget`, `a + b`, `a - b`."""

    plain_state = ("fingerprint", "targets", "statistics")
    meaning = ""  # an estimator's description of inputs and labels; not saved

    def __init__(
        self, grid: GridFeatures, targets: Classes | Values, calibration: int, min_ess: float | None
    ) -> None:
        classes = isinstance(targets, Classes)
        link = "softmax" if classes else "identity"
        super().__init__(grid.particles, link=link, min_ess=min_ess)
        self.grid, self.targets = grid, targets
        self.calibration = calibration if classes else 0  # keep one sample in so many; 0: none
        self.units = Units(1.0 / grid.scale, targets.unit, grid.bits)
        self.statistics: HeadStatistics | None = None  # without data
        self.warnings = GridWarnings()
        self.fingerprint = grid.fingerprint()

    def _take(self, statistics: HeadStatistics | None) -> None:
        """Use these sums from now on."""
        self.statistics = statistics

    def holding(self, statistics: HeadStatistics | None) -> Self:
        """A filter with these sums and the same settings; it shares the maps."""
        result = copy.copy(self)
        result._take(statistics)
        return result

    @property
    def samples(self) -> int | float:
        """The number of samples: the sum of their weights."""
        return 0 if self.statistics is None else whole(self.statistics.samples)

    @property
    def clipped(self) -> int | float:
        """The number of feature values beyond `feature_limit`; should be small."""
        own = 0.0 if self.statistics is None else self.statistics.clipped
        return whole(self._everywhere(own))

    def _everywhere(self, count: float) -> float:
        """The sum over all ranks."""
        here = torch.tensor(count, dtype=torch.float64, device=self.particles.device)
        return float(self.particles.shard.sum(here))

    @property
    def columns(self) -> list[Column]:
        """The head's columns (task, label) in ascending order; task is -1 if none was given."""
        return column_pairs(self._numbers())

    def tasks_and_labels(self) -> tuple[Tensor, Tensor]:
        """`columns` as two tensors `[K]`."""
        return tasks_and_labels(self._numbers())

    def _numbers(self) -> Tensor:
        if self.statistics is None:
            return torch.zeros(0, dtype=torch.int64, device=self.particles.device)
        return self.statistics.columns

    def update(
        self, x: Tensor, y: Tensor, task: int | None = None, sample_weight: Any = None
    ) -> None:
        """Add samples x `[B, ...]` with targets y `[B]`. After an error nothing has changed.

        With `task` the head has a column per (task, label), otherwise one per label. A sample of
        weight 3 counts as three; weights `[B]` are multiples of 1/16 up to 16.
        """
        self._change(x, y, task, sample_weight, 1)

    def forget(
        self, x: Tensor, y: Tensor, task: int | None = None, sample_weight: Any = None
    ) -> None:
        """Remove samples, as if they had never been added. After an error nothing has changed.

        They must be the same as in `update`, weights included, in any order and batches. Samples
        that were never added are refused if the sums show it: if a count or a sum of squares would
        fall below 0, or if sums would remain without samples.
        """
        self._change(x, y, task, sample_weight, -1)

    @in_plain_mode
    def _change(self, x: Tensor, y: Tensor, task: int | None, weight: Any, sign: int) -> None:
        x, y, weights = checked(x, y, weight, self.particles.device)
        self.targets.check(y, task, self._numbers())
        self.check_total(float(weights.sum()), sign)
        if not weights.any():
            return
        counted = weights > 0
        if not counted.all():  # a sample of weight 0 does not even add its class
            x, y, weights = x[counted.to(x.device)], y[counted], weights[counted]
        room: HeadStatistics | None = None
        try:
            for rows, labels, mass in self.grid.blocks(x, y, weights):
                block = self.grid.measured(rows)
                first = room is None
                if room is None:
                    room = self._room(block.features.shape[-1], y, task, sign)
                targets = self.targets.encode(labels, task, room.columns)
                if first:
                    self._warn(rows, labels, targets, block)
                plain = bool((mass == 1.0).all())
                room.add(block.features, targets, None if plain else mass, sign)
                room.clipped += sign * float(block.clipped.sum((0, 2)).double() @ mass)
                if room.kept is not None:
                    keys = keys_of(rows).to(targets.device)
                    some = keys % self.calibration == 0
                    values = (block.features[:, some] / self.grid.limit).half()
                    kept = KeptSamples(keys[some], room.columns[targets[some]], mass[some], values)
                    room.kept = room.kept.plus(kept, sign)
            assert room is not None
            if sign < 0:
                self._refuse_impossible(room)
            statistics = self._pruned(room)
        except BaseException:
            self._undo(x, weights, sign)
            raise
        self._take(statistics)

    def _warn(self, x: Tensor, y: Tensor, targets: Tensor, block: Block) -> None:
        """Warn if inputs, features or targets lose much on their grids; y are those before it."""
        some, limit = slice(_LOOKED_AT), getattr(self.particles.template, "input_limit", None)
        if limit is not None and x.is_floating_point():
            inside = round_inputs(x[some], limit, torch.float64)
            self.warnings.compare("inputs", x[some], inside, limit, "input_limit")
        raw, features = block.raw[:, some], block.features[:, some]
        self.warnings.compare("features", raw, features, self.grid.limit, "feature_limit")
        if isinstance(self.targets, Values):
            values, rounded = y[some].double().reshape(targets[some].shape), targets[some]
            self.warnings.compare("targets", values, rounded, self.targets.limit, "target_limit")

    def check_total(self, more: float, sign: int = 1) -> None:
        """Raise `ValueError` if the sums would not be exact with so many more samples."""
        samples = self.samples + more
        if sign > 0 and samples > self.units.most:
            raise ValueError(
                f"{samples:.0f} samples cannot be summed exactly with bits={self.grid.bits}: the "
                f"limit is {self.units.most:.0f}; build the filter with fewer bits"
            )

    def _room(self, features: int, y: Tensor, task: int | None, sign: int) -> HeadStatistics:
        """The present sums, with all columns that `y` needs."""
        device, n = self.particles.device, self.particles.shard.count
        statistics = self.statistics
        wanted = self.targets.columns(y, task)
        if sign < 0:
            strange = column_pairs(wanted[~torch.isin(wanted, self._numbers())])
            if strange:
                owner, label = strange[0]
                of_task = "" if owner < 0 else f" of task {owner}"
                raise ValueError(f"no sample of label {label}{of_task} is here to be forgotten")
        if statistics is None:
            statistics = HeadStatistics.empty(n, features, self.units, device)
            if self.calibration:
                statistics.kept = KeptSamples.empty(n, features, device)
        if statistics.features != features:
            raise ValueError(
                f"the feature map gave {features} features, but {statistics.features} before: it "
                "must give the same number for every input"
            )
        return statistics.with_columns(wanted)

    def _undo(self, x: Tensor, weights: Tensor, sign: int) -> None:
        """Undo an incomplete change; the sums are exact, so the opposite change leaves no trace."""
        statistics = self.statistics
        if statistics is None:
            return
        count = int((weights.cumsum(0) <= abs(statistics.begun())).sum())
        for rows, mass in self.grid.blocks(x[:count], weights[:count]) if count else ():
            statistics.add_gram(self.grid(rows), mass, -sign)

    def _refuse_impossible(self, room: HeadStatistics) -> None:
        reason = room.impossible()
        if self._everywhere(float(reason is not None)):
            reason = reason or "the sums of another rank would be those of no data"
            raise ValueError(f"these samples were never all in it: {reason}. Nothing was forgotten")

    def _pruned(self, sums: HeadStatistics) -> HeadStatistics | None:
        """The sums without the columns of classes that have no samples; None without samples."""
        if sums.samples == 0:
            return None
        return sums.without_empty_columns() if isinstance(self.targets, Classes) else sums

    def __add__(self, other: DataAlgebra) -> Self:
        """A filter with the data of both and the settings of this one. Neither changes."""
        return self._combined(other, 1)

    def __sub__(self, other: DataAlgebra) -> Self:
        """A filter with the data of this one that are not in the other. Neither changes."""
        return self._combined(other, -1)

    def __radd__(self, other: Any) -> Self:
        """0 + a, for `sum`."""
        return self.holding(self._copied(self.statistics)) if other == 0 else NotImplemented

    @in_plain_mode
    def _copied(self, statistics: HeadStatistics | None) -> HeadStatistics | None:
        """A copy on the device of the maps."""
        return self._from_state(None if statistics is None else statistics.state_dict())

    def _from_state(self, state: Mapping[str, Any] | None) -> HeadStatistics | None:
        device = self.particles.device
        return None if state is None else HeadStatistics.from_state(state, self.units, device)

    @in_plain_mode
    def _combined(self, other: DataAlgebra, sign: int) -> Self:
        if not isinstance(other, DataAlgebra):
            return NotImplemented
        self._check_mergeable(other)
        self.check_total(other.samples, sign)
        ours, theirs = self.statistics, other.statistics
        if ours is None and theirs is not None and sign < 0:
            raise ValueError("nothing can be taken from a filter without data")
        if ours is None or theirs is None:
            return self.holding(self._copied(ours or theirs))
        statistics = ours.plus(theirs, sign)
        if sign < 0:
            self._refuse_impossible(statistics)
        return self.holding(self._pruned(statistics))

    def _check_mergeable(self, other: DataAlgebra) -> None:
        if str(self.targets) != str(other.targets):
            raise ValueError(f"targets are {self.targets} here and {other.targets} there")
        if self.fingerprint != other.fingerprint:
            ours, theirs = (each.fingerprint.partition("-") for each in (self, other))
            if ours[0] == theirs[0]:
                raise ValueError(
                    "the same maps may give other bits there: they are computed in "
                    f"{ours[2]!r} here and in {theirs[2]!r} there"
                )
            raise ValueError(
                f"these filters have different feature maps or grids ({ours[0][:12]} and "
                f"{theirs[0][:12]}): only sums over the same features can be added; build both "
                "from the same ensemble and seed"
            )
        if self.calibration != other.calibration:
            raise ValueError(
                f"one sample in {self.calibration} is kept here and one in {other.calibration} "
                "there: build both with the same calibration"
            )
        if self.meaning != other.meaning:
            raise ValueError(
                "inputs or labels mean something else there: add the estimators that these filters "
                "belong to, which align labels and compare scales"
            )
        tasks = {task >= 0 for task, _ in self.columns + other.columns}
        if len(tasks) > 1:
            raise ValueError("one of these filters has a column per task and the other has not")
        self.targets.check_others(self.columns, other.columns)

    def relabelled(self, labels: list[int], classes: int | None) -> Self:
        """The same data with label i renamed to `labels[i]` (ascending), out of `classes`."""
        targets, statistics = Classes(classes), self._copied(self.statistics)
        if statistics is not None:
            pairs = [(task, labels[label]) for task, label in self.columns]
            targets.check_others([], pairs)
            numbers = column_numbers(pairs, statistics.columns.device)
            if statistics.kept is not None:
                places = torch.searchsorted(statistics.columns, statistics.kept.columns)
                statistics.kept = replace(statistics.kept, columns=numbers[places])
            statistics.columns = numbers
        result = self.holding(statistics)
        result.targets = targets
        return result

    def state_dict(self) -> dict[str, Any]:
        """Maps and sums; see `ol.save`."""
        collect_all = self.particles.shard.collect_all
        particles = collect_all(self.particles.state_dict())
        sums = None if self.statistics is None else self.statistics.state_dict()
        if sums is not None:
            own = {name: sums[name] for name in _OF_PARTICLES if sums.get(name) is not None}
            sums |= {**collect_all(own), "clipped": self.clipped}
        return {
            "kind": type(self).__name__,
            "particles": particles,
            "fingerprint": self.grid.fingerprint(particles),
            "targets": type(self.targets).__name__,
            "statistics": sums,
            "calibration": self.calibration,
        }

    @in_plain_mode
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load maps and sums. Raise before any change if they are of another kind or grid."""
        self.check_state(state)
        ours, _, here = self.grid.fingerprint(state["particles"]).partition("-")
        theirs, _, there = state["fingerprint"].partition("-")
        if theirs != ours:
            raise ValueError("this state is of another kind of feature map or of another grid")
        if there not in ("", here):  # version 0.1 wrote the hash alone
            raise ValueError(
                f"these sums were computed in {there!r}, and the same maps may give other bits in "
                f"{here!r}: load them there, or update with the data here"
            )
        if state["targets"] != type(self.targets).__name__:
            ours = type(self.targets).__name__
            raise ValueError(f"this state is of targets {state['targets']}, not {ours}")
        every = state.get("calibration", self.calibration)
        if every != self.calibration:
            raise ValueError(
                f"this state keeps one sample in {every} and the filter one in {self.calibration}: "
                f"build it with calibration={every}"
            )
        sums, shard = state["statistics"], self.particles.shard
        if sums is not None:
            columns = [(int(task), int(label)) for task, label in sums["columns"]]
            self.targets.check_others([], columns)
            own = {name: sums[name] for name in _OF_PARTICLES if sums.get(name) is not None}
            clipped = sums["clipped"] if shard.rank == 0 else 0
            sums = {**sums, **shard.local_all(own), "clipped": clipped}
        statistics, maps = self._from_state(sums), shard.local_all(state["particles"])
        fingerprint = self.grid.fingerprint(maps)
        if fingerprint != self.fingerprint:
            self.grid = copy.deepcopy(self.grid)  # `a + b` shares the maps of `a`
            self.particles = self.grid.particles
        self.particles.load_state_dict(maps)
        self.fingerprint = fingerprint
        self._take(statistics)


def check_tensor(name: str, value: Any) -> None:
    """Raise `TypeError` if a value is not a dense tensor of real numbers."""
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise TypeError(
            f"{name} must be a tensor, got {kind}: use torch.as_tensor, and number labels that are "
            "strings"
        )
    if value.is_complex() or value.layout != torch.strided:
        raise TypeError(f"{name} must hold real numbers, densely, got {value.dtype} {value.layout}")


def checked(
    x: Tensor, y: Tensor, weight: Any, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs `[B, ...]`, targets and weights `[B]`; a single sample may lack the first axis."""
    check_tensor("x", x)
    check_tensor("y", y)
    if y.dim() == 0:
        x, y = x.unsqueeze(0), y.unsqueeze(0)
    count, y = len(x) if x.dim() else 0, y.to(device)
    if count != len(y) or count == 0:
        raise ValueError(
            f"x has {count} samples and y has {len(y)}: give at least one, and one target each"
        )
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError("x holds values that are not finite: clean the data first")
    if weight is None:
        return x, y, torch.ones(count, dtype=torch.float64, device=device)
    weights = torch.as_tensor(weight, dtype=torch.float64, device=device)
    weights = weights.expand(count) if weights.dim() == 0 else weights
    if tuple(weights.shape) != (count,):
        raise ValueError(
            f"sample_weight must be [{count}], one per sample, got {tuple(weights.shape)}"
        )
    fine = (weights >= 0) & (weights <= LARGEST_WEIGHT) & (weights * 16 == (weights * 16).round())
    if not fine.all():
        raise ValueError(
            "sample_weight must lie between 0 and 16 in multiples of 1/16, which keeps sums exact, "
            f"got {weights[~fine][0].item():g}"
        )
    return x, y, weights
