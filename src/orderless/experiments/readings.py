r"""Many filters read off one training run.

Weights never move a particle, and particles do not know of each other. So a run of N particles
holds the answers of many filters at once. With w the weights of the whole run:

- the filter of the first n particles: w_1 .. w_n, normalised; n = 1 is gradient descent;
- `loss_scale=c`: w^c, since log w is a sum of losses; c = 0 is the unweighted average;
- `min_ess=k`: w^tau with the largest tau <= 1 at which the effective sample size is k.

`loss_scale` and `min_ess` are thus the same thing, a power of the weights, fixed or chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..filters.base import ParticleFilter
from ..filters.weights import effective_sample_size, normalize, temper, temperature_for
from ..methods.learners import ContinualLearner
from .evaluation import COMBINES


@dataclass(frozen=True)
class Reading:
    """One way to weigh the first `n` particles; `min_ess` is a share of n."""

    method: str
    n: int
    loss_scale: float = 1.0
    min_ess: float | None = None

    def weights(self, log_weights: Tensor) -> tuple[Tensor, float]:
        """Log-weights `[n]` from the run's raw ones `[N]`, and the power they were raised to."""
        own = normalize(log_weights[: self.n])[0]
        power = self.loss_scale
        if self.min_ess is not None:
            own = temper(own, power)
            power = float(temperature_for(own, max(1.0, self.min_ess * self.n)))
        return temper(own, power), power


def sgd_readings(
    particles: Sequence[int], loss_scales: Sequence[float], min_ess: Sequence[float]
) -> list[Reading]:
    """Gradient descent, averaging, the paper's filter and its variants, for each n."""
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
) -> list[dict[str, Any]]:
    """Every reading's scores by task and combination, its ESS, and how far its particles went."""
    chosen = [reading.weights(log_weights) for reading in readings]
    scores: list[dict[str, list[float]]] = [{name: [] for name in COMBINES} for _ in readings]
    for task in range(len(learner.scenario)):
        counts = [dict.fromkeys(COMBINES, 0.0) for _ in readings]
        x, y = learner.scenario.test_set(task)
        for xs, ys in zip(x.split(test_batch), y.split(test_batch), strict=True):
            outputs = learner.outputs(xs, task)
            own = (outputs.argmax(-1) == ys).double().sum(1)
            probabilities = outputs.softmax(-1)
            for (own_weights, _), count in zip(chosen, counts, strict=True):
                weights, n = own_weights.exp(), len(own_weights)
                votes = ParticleFilter.average(outputs[:n].nan_to_num(neginf=-1e30), weights)
                mixture = ParticleFilter.average(probabilities[:n], weights)
                count["accuracy"] += float(ParticleFilter.average(own[:n], weights))
                count["logits"] += float((votes.argmax(-1) == ys).sum())
                count["probs"] += float((mixture.argmax(-1) == ys).sum())
        for count, rows in zip(counts, scores, strict=True):
            for name in COMBINES:
                rows[name].append(count[name] / len(y))
    return [
        {
            **asdict(reading),
            "power": power,
            "ess": float(effective_sample_size(own_weights)),
            "moved": sum(moved[: reading.n]) / reading.n,
            "scores": rows,
        }
        for reading, (own_weights, power), rows in zip(readings, chosen, scores, strict=True)
    ]
