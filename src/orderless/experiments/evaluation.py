"""What is seen of a learner: scores on every task, in the three ways particles can be combined;
plasticity; and where all particles stand, small enough to keep, for the density figure.
"""

import base64
import itertools
import math
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from ..filters import Predictor
from ..methods.learners import ContinualLearner
from ..particles import Ensemble

COMBINES = ("accuracy", "logits", "probs")
PROJECTION = 64  # dimensions kept of a particle's position
SAMPLES = 512  # on which plasticity is measured


@dataclass
class TaskScore:
    """One task's scores: fractions correct by combination, and what the mixture said."""

    accuracy: dict[str, float]
    nll: float
    ece: float
    predictions: str


@torch.no_grad()
def score_task(learner: ContinualLearner, task: int, test_batch: int) -> TaskScore:
    """`accuracy`: weighted mean of the particles' own; `logits`, `probs`: of the mixture."""
    x, y = learner.scenario.test_set(task)
    weights, filter = learner.weights, learner.filter
    right = dict.fromkeys(COMBINES, 0.0)
    chances, answers = [], []
    for xs, ys in zip(x.split(test_batch), y.split(test_batch), strict=True):
        outputs = learner.outputs(xs, task)  # [N, B, C]
        own = filter.particles.shard.gather((outputs.argmax(-1) == ys).double().sum(1))
        probabilities = filter.mixture(outputs.softmax(-1), weights)
        votes = filter.mixture(outputs.nan_to_num(neginf=-1e30), weights)
        right["accuracy"] += float(filter.average(own, weights))
        right["logits"] += float((votes.argmax(-1) == ys).sum())
        right["probs"] += float((probabilities.argmax(-1) == ys).sum())
        chances.append(probabilities.double().cpu().numpy())
        answers.append(probabilities.argmax(-1).to(torch.uint8).cpu().numpy())
    labels, mixture = y.cpu().numpy(), np.concatenate(chances)
    with np.errstate(invalid="ignore"):  # a network that broke down may say NaN
        ece = metrics.ece(mixture, labels)
    return TaskScore(
        {name: count / len(labels) for name, count in right.items()},
        metrics.nll(mixture, labels),
        ece,
        base64.b64encode(np.concatenate(answers).tobytes()).decode(),
    )


@torch.no_grad()
def plasticity(seen: Tensor, weights: list[Tensor]) -> dict[str, float]:
    """Dormant units, effective rank and weight size of one network.

    `seen`: what its last layer sees `[B, M]`.
    """
    features = seen.double().cpu().numpy()
    whole = bool(np.isfinite(features).all())  # singular values of a NaN are an error
    sizes = [p.abs().sum(dtype=torch.float64) for p in weights]  # millions: not on the host
    return {
        "dormant": metrics.dormant_share(features),
        "effective_rank": metrics.effective_rank(features) if whole else float("nan"),
        "mean_abs_weight": float(torch.stack(sizes).sum()) / sum(p.numel() for p in weights),
    }


@torch.no_grad()
def displacement(particles: Ensemble, initial: Ensemble) -> list[float]:
    """|x_i - x_i(0)| / |x_i(0)| over all parameters of each particle: how far it has moved.

    After resampling, x_i may descend from another particle's start: it has moved there, too.
    """
    pairs = list(zip(particles.parameters(), initial.parameters(), strict=True))
    moved = [(now.double() - then.double()).square().flatten(1).sum(1) for now, then in pairs]
    length = [then.double().square().flatten(1).sum(1) for _, then in pairs]
    return particles.shard.gather((sum(moved) / sum(length)).sqrt()).tolist()  # type: ignore[union-attr]


def loss_areas(trace: dict[str, list[float]], counts: list[int]) -> list[float | None]:
    """Mean training loss over each task: the area under its learning curve, per step."""
    steps, losses = np.array(trace["step"]), np.array(trace["loss"])
    ends = np.cumsum([0, *counts])
    parts = [losses[(steps > a) & (steps <= b)] for a, b in itertools.pairwise(ends)]
    return [finite(float(part.mean())) if len(part) else None for part in parts]


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Snapshot(TypedDict):
    """One moment, in a form that a checkpoint can hold."""

    position: Tensor
    log_weights: Tensor
    step: int


@torch.no_grad()
def snapshot(filter: Predictor, step: int) -> Snapshot:
    """Positions `[N, 64]` of all particles under a fixed random projection, and their weights."""
    particles = filter.particles
    total = torch.zeros(particles.shard.count, PROJECTION, device=particles.device)
    generator = torch.Generator().manual_seed(0)
    for parameter in particles.parameters():
        for part in parameter.detach().flatten(1).split(65536, dim=1):
            directions = torch.randn(part.shape[1], PROJECTION, generator=generator)
            total += part.float() @ directions.to(total)
    position = particles.shard.gather(total).cpu() / math.sqrt(PROJECTION)
    return {"position": position, "log_weights": filter.log_weights.cpu(), "step": step}


def stacked(taken: list[Snapshot]) -> dict[str, Tensor]:
    """Snapshots of one run: positions `[S, N, 64]`, log_weights `[S, N]`, step `[S]`."""
    return {
        "positions": torch.stack([s["position"] for s in taken]),
        "log_weights": torch.stack([s["log_weights"] for s in taken]),
        "step": torch.tensor([s["step"] for s in taken]),
    }
