r"""The results of many filters from one training run, a cell of the map of when weighting helps.

Weights do not move particles, and particles do not interact. So a run of N particles contains the
predictions of many filters. With w the weights of the whole run:

- the filter of the first n particles: w_1 .. w_n, normalised; a single one is gradient descent;
- `loss_scale=c`: w^c, since log w is a sum of losses; c = 0 is the unweighted average;
- `min_ess=k`: w^tau with the largest tau <= 1 at which the effective sample size is k.

So `loss_scale` and `min_ess` are both a power of the weights, fixed or chosen.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orderless.filters.weights import effective_sample_size, normalize, temper, temperature_for

from ..methods.learners import ContinualLearner
from ..methods.supervised import GaussianSumSettings
from .cell import Cell
from .evaluation import COMBINES, count_correct, displacement
from .record import Reading, ReadingRecord, TrainingRecord
from .supervised import UnscoredRunner


def weigh(reading: Reading, log_weights: Tensor) -> tuple[Tensor, float]:
    """Log-weights `[n]` from the raw ones `[N]` of the run, and the power that was applied."""
    own = normalize(log_weights[: reading.n])[0]
    power = reading.loss_scale
    if reading.min_ess is not None:
        own = temper(own, power)
        power = float(temperature_for(own, max(1.0, reading.min_ess * reading.n)))
    return temper(own, power), power


def sgd_readings(
    particles: Sequence[int], loss_scales: Sequence[float], min_ess: Sequence[float]
) -> list[Reading]:
    """Readings of gradient descent, averaging, the paper's filter and its variants, for each n."""
    found = [Reading("gd", 1)]
    for n in sorted(particles):
        found += [Reading("averaging", n, loss_scale=0.0), Reading("wpf", n)]
        found += [Reading("wpf", n, loss_scale=c) for c in loss_scales if c != 1.0]
        found += [Reading("wpf", n, min_ess=share) for share in min_ess]
    return found


@torch.no_grad()
def read(
    learner: ContinualLearner,
    log_weights: Tensor,
    readings: Sequence[Reading],
    moved: list[float],
    test_batch: int,
) -> list[ReadingRecord]:
    """The scores of every reading by task and combination, its ESS and its displacement."""
    chosen = [weigh(reading, log_weights) for reading in readings]
    scores = np.zeros((len(readings), len(COMBINES), len(learner.scenario)))
    for task in range(len(learner.scenario)):
        x, y = learner.scenario.test_set(task)
        for xs, ys in zip(x.split(test_batch), y.split(test_batch), strict=True):
            outputs = learner.outputs(xs, task)
            single = float((outputs.argmax(-1) == ys).double().sum(1).mean())
            for own, reading, (own_weights, _) in zip(scores, readings, chosen, strict=True):
                if reading.method == "gd":  # each particle alone; their mean
                    own[:, task] += single
                else:
                    some, weights = outputs[: reading.n], own_weights.exp()
                    own[:, task] += count_correct(learner.filter, some, ys, weights)[0]
        scores[..., task] /= len(y)
    return [
        ReadingRecord(
            **asdict(reading),
            power=power,
            ess=float(effective_sample_size(own_weights)),
            moved=fmean(moved if reading.method == "gd" else moved[: reading.n]),
            scores=dict(zip(COMBINES, own.tolist(), strict=True)),
        )
        for reading, (own_weights, power), own in zip(readings, chosen, scores, strict=True)
    ]


@dataclass(frozen=True)
class Training(Cell):
    """A cell of the map: a method with its settings, in one order, from one seed."""

    readings: tuple[Reading, ...] = ()

    @property
    def kind(self) -> str:
        return "regime"

    @property
    def training(self) -> str:
        """Its name in the map: a run of `wpf` gives the readings of many filters."""
        return {"wpf": "sgd"}.get(self.method, self.method)

    @property
    def rate(self) -> float | None:
        """Its position on the map's axis; None for the exact filter."""
        s = self.settings
        sigma2 = s.of(GaussianSumSettings).gsf_sigma2
        return {"sgd": s.lr, "adam": s.adam_lr, "gsf": sigma2}.get(self.training)

    @property
    def init(self) -> str | None:
        return None if self.method == "rb" else self.settings.init

    @property
    def name(self) -> str:
        rate = None if self.rate is None else f"{self.rate:g}"
        parts = [self.training, self.init, rate, f"order{self.order_index}", f"seed{self.seed}"]
        return "-".join(part for part in parts if part is not None)

    @property
    def title(self) -> str:
        return self.name

    def describe(self) -> dict[str, object]:
        found, kept = super().describe(), ("order_index", "order", "seed", "settings")
        own = {name: getattr(self, name) for name in ("training", "rate", "init")}
        own |= {name: found[name] for name in kept}
        return {**own, "readings_wanted": [asdict(reading) for reading in self.readings]}


class TrainingRunner(UnscoredRunner):
    """Learns as every cell does, and scores all readings at the end."""

    cell: Training

    def _record(self, command: str) -> TrainingRecord:  # type: ignore[override]
        filter: Any = self.learner.filter
        weights = filter.raw_log_weights if self.cell.training == "sgd" else filter.log_weights
        moved = displacement(filter.networks, self._initial())
        found = read(self.learner, weights, self.cell.readings, moved, self.settings.test_batch)
        return TrainingRecord(**self._facts(command), readings=found)
