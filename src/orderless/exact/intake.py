"""How samples become sums: the maps, the grids of features and targets, what is kept besides."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .grid import GridFeatures, GridWarnings, in_plain_mode
from .ledger import Ledger
from .sums import HeadSums, KeptSamples, Units
from .targets import Classes, Values, checked, column_numbers, column_pairs


@dataclass(frozen=True)
class Intake:
    """Everything that sums depend on besides the data. Sums of equal intakes can be added."""

    grid: GridFeatures
    targets: Classes | Values
    calibration: int  # keep one sample in so many; 0: none
    ledger: bool
    meaning: str = ""  # an estimator's description of inputs and labels; not saved
    warnings: GridWarnings = field(default_factory=GridWarnings)

    @property
    def units(self) -> Units:
        classes = isinstance(self.targets, Classes)
        return Units(self.grid.limit, self.targets.unit, self.grid.bits, classes)

    @in_plain_mode
    def part(self, x: Tensor, y: Tensor, task: int | None, sample_weight: Any) -> HeadSums | None:
        """The sums over these samples alone; None if none of them counts."""
        x, y, weights = checked(x, y, sample_weight, self.grid.device)
        self.targets.check(y, task)
        counted = weights > 0
        if not counted.any():
            return None
        if not counted.all():  # a sample of weight 0 does not even add its class
            x = x[counted.to(x.device)]
            y = y[counted]
            weights = weights[counted]
        columns = self.targets.columns(y, task)
        sums = None
        for rows, labels, mass in self.grid.blocks(x, y, weights):
            block = self.grid.measured(rows)
            targets = self.targets.encode(labels, task, columns)
            if sums is None:
                n, _, size = block.features.shape
                sums = HeadSums.empty(n, size, self.units, columns, self.grid.device)
                self.warnings.look_at(self.grid, self.targets, rows, labels, targets, block)
            sums.add(block.features, targets, mass)
            sums.clipped += float(block.clipped.sum((0, 2)).double() @ mass)
            if self.calibration:
                small = block.features / self.grid.limit
                kept = KeptSamples.of(rows, small, columns[targets], mass, self.calibration)
                sums.kept = kept if sums.kept is None else sums.kept.plus(kept)
        assert sums is not None
        if self.ledger:
            sums.ledger = Ledger.of(self.grid.fingerprint, x, y, task, weights)
        return sums.carry()

    @in_plain_mode
    def combined(
        self, ours: HeadSums | None, theirs: HeadSums | None, sign: int
    ) -> HeadSums | None:
        """Sums plus or minus others, after every check; None if no data are left."""
        if theirs is None:
            return ours
        known = theirs.columns[:0] if ours is None else ours.columns
        self.targets.check_others(known, theirs.columns)
        if ours is not None and ours.features != theirs.features:
            raise ValueError(
                f"the feature map gave {theirs.features} features, but {ours.features} before: it "
                "must give the same number for every input"
            )
        if sign > 0:
            self.check_total(theirs.samples + (0.0 if ours is None else ours.samples))
            total = self.here(theirs) if ours is None else ours.plus(theirs)
            doubt = self.targets.doubt(total.columns)
            if doubt:
                self.warnings.tell("labels", doubt)
            return total
        if ours is None:
            raise ValueError("nothing can be taken from a head without data")
        new = theirs.columns.to(known.device)
        strange = column_pairs(new[~torch.isin(new, known)])
        if strange:
            task, label = strange[0]
            of_task = "" if task < 0 else f" of task {task}"
            raise ValueError(f"no sample of label {label}{of_task} is here to be forgotten")
        left = ours.plus(theirs, -1)
        reason = left.impossible()
        if reason:
            raise ValueError(f"these samples were never all in it: {reason}. Nothing was forgotten")
        return left if left.samples else None

    def check_total(self, samples: float) -> None:
        """Raise `ValueError` if so many samples are too many for exact sums."""
        if samples > self.units.most:
            raise ValueError(
                f"{samples:.0f} samples cannot be summed exactly with bits={self.grid.bits}: the "
                f"limit is {self.units.most:.0f}; build the head with fewer bits"
            )

    @in_plain_mode
    def here(self, sums: HeadSums) -> HeadSums:
        """Sums on the device of the maps."""
        if sums.columns.device == self.grid.device:
            return sums
        return HeadSums.from_state(sums.state_dict(), self.units, self.grid.device)

    def check_same(self, other: Intake) -> None:
        """Raise `ValueError` if the other's sums are not over the same features and targets."""
        self.check_described(other.described())
        if self.meaning != other.meaning:
            raise ValueError(
                "inputs or labels mean something else there: add the estimators that these heads "
                "belong to, which align labels and compare scales"
            )

    def described(self) -> dict[str, Any]:
        """What a saved state says about it."""
        return {
            "fingerprint": self.grid.fingerprint,
            "targets": str(self.targets),
            "calibration": self.calibration,
            "ledger": self.ledger,
        }

    def check_described(self, there: dict[str, Any]) -> None:
        """Raise `ValueError` if sums of an intake with this description do not fit here."""
        ours, _, conditions = self.grid.fingerprint.partition("-")
        theirs, _, others = there["fingerprint"].partition("-")
        if str(self.targets) != there["targets"]:
            raise ValueError(f"targets are {self.targets} here and {there['targets']} there")
        if ours != theirs:
            raise ValueError(
                f"these are sums over different feature maps or grids ({ours[:12]} here and "
                f"{theirs[:12]} there): build both from the same ensemble and seed, with the same "
                "limit and bits"
            )
        if conditions != others:
            raise ValueError(
                "the same maps may give other bits there: they are computed in "
                f"{conditions!r} here and in {others!r} there"
            )
        if self.calibration != there["calibration"]:
            raise ValueError(
                f"one sample in {self.calibration} is kept here and one in {there['calibration']} "
                f"there: build this head with calibration={there['calibration']}"
            )
        if self.ledger != there["ledger"]:
            raise ValueError(
                f"ledger={self.ledger} here and {there['ledger']} there: build both alike, or "
                "drop_ledger() first"
            )

    def relabelled(self, sums: HeadSums, labels: list[int]) -> HeadSums:
        """The sums with label i renamed to `labels[i]`, ascending."""
        if self.ledger:
            raise ValueError("the hashes of a ledger hold labels: drop_ledger() before renaming")
        pairs = [(task, labels[label]) for task, label in column_pairs(sums.columns)]
        columns = column_numbers(pairs, sums.columns.device)
        self.targets.check_others(columns[:0], columns)
        kept = sums.kept
        if kept is not None:
            kept = replace(kept, columns=columns[torch.searchsorted(sums.columns, kept.columns)])
        return replace(sums, columns=columns, kept=kept)
