"""Scores of a learner on each task, its plasticity, and the positions of its particles."""

import base64
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderless import metrics
from orderless.ensemble import Ensemble
from orderless.filters import ParticleFilter, Predictor

from ..methods.learners import ContinualLearner
from ..plasticity import dormant_share, effective_rank

COMBINES = ("particles", "logits", "probs")  # ways of combining particles, see `count_correct`
PROJECTION = 64  # dimensions of a projected position
SAMPLES = 512  # for the measurement of plasticity


@dataclass
class TaskScore:
    """Shares of correct answers by combination; nll, ece and labels of the mixture."""

    correct: dict[str, float]
    nll: float
    ece: float
    predictions: str


def count_correct(
    filter: Predictor, outputs: Tensor, y: Tensor, weights: Tensor
) -> tuple[NDArray[np.float64], Tensor]:
    """Correct predictions of a batch for each of `COMBINES`, and the mixture's probabilities.

    `particles` is the weighted mean of the particles' own counts; `logits` and `probs` are of
    their weighted mean outputs and probabilities.
    """
    own = (outputs.argmax(-1) == y).double().sum(1)
    probabilities = filter.average(outputs.softmax(-1), weights)
    logits = filter.average(outputs.nan_to_num(neginf=-1e30), weights)
    counts = [ParticleFilter.average(own, weights)]
    for mixture in (logits, probabilities):
        counts.append((mixture.argmax(-1) == y).sum())
    return np.array([float(count) for count in counts]), probabilities


@torch.no_grad()
def score_task(learner: ContinualLearner, task: int, test_batch: int) -> TaskScore:
    x, y = learner.scenario.test_set(task)
    weights = learner.weights
    correct = np.zeros(len(COMBINES))
    found = []
    for xs, ys in zip(x.split(test_batch), y.split(test_batch), strict=True):
        outputs = learner.outputs(xs, task)  # [N, B, C]
        more, probabilities = count_correct(learner.filter, outputs, ys, weights)
        correct += more
        found.append(probabilities)
    labels = y.cpu().numpy()
    mixture = torch.cat(found)
    chances = mixture.double().cpu().numpy()
    answers = mixture.argmax(-1).to(torch.uint8)
    with np.errstate(invalid="ignore"):  # a network that diverged may return NaN
        ece = metrics.ece(chances, labels)
    return TaskScore(
        dict(zip(COMBINES, (correct / len(labels)).tolist(), strict=True)),
        metrics.nll(chances, labels),
        ece,
        base64.b64encode(answers.cpu().numpy().tobytes()).decode(),
    )


@torch.no_grad()
def plasticity(seen: Tensor, weights: list[Tensor]) -> dict[str, float]:
    """Dormant units, effective rank and weight size of a network; its last layer's inputs `[B, M]`
    are `seen`."""
    features = seen.double().cpu().numpy()
    whole = bool(np.isfinite(features).all())  # singular values of NaN raise an error
    sizes = [p.abs().sum(dtype=torch.float64) for p in weights]  # on the device: there are millions
    return {
        "dormant": dormant_share(features),
        "effective_rank": effective_rank(features) if whole else float("nan"),
        "mean_abs_weight": float(torch.stack(sizes).sum()) / sum(p.numel() for p in weights),
    }


@torch.no_grad()
def displacement(particles: Ensemble, initial: Ensemble) -> list[float]:
    """|x_i - x_i(0)| / |x_i(0)| of each particle, even if it now descends from another one."""
    pairs = list(zip(particles.parameters(), initial.parameters(), strict=True))
    moved = [(now.double() - then.double()).square().flatten(1).sum(1) for now, then in pairs]
    length = [then.double().square().flatten(1).sum(1) for _, then in pairs]
    return (sum(moved) / sum(length)).sqrt().tolist()  # type: ignore[union-attr]


def loss_areas(trace: dict[str, list[float]], counts: list[int]) -> list[float | None]:
    """Mean training loss over each task: the area under its learning curve, per step."""
    steps, losses = np.array(trace["step"]), np.array(trace["loss"])
    ends = np.cumsum([0, *counts])
    parts = [losses[(steps > a) & (steps <= b)] for a, b in itertools.pairwise(ends)]
    return [finite(float(part.mean())) if len(part) else None for part in parts]


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@torch.no_grad()
def snapshot(filter: Predictor, step: int) -> dict[str, Any]:
    """Randomly projected positions `[N, 64]` of all particles, and weights: the density figure."""
    particles = filter.particles
    total = torch.zeros(particles.n, PROJECTION, device=particles.device)
    generator = torch.Generator().manual_seed(0)
    for parameter in particles.parameters():
        for part in parameter.detach().flatten(1).split(65536, dim=1):
            directions = torch.randn(part.shape[1], PROJECTION, generator=generator)
            total += part.float() @ directions.to(total)
    position = total.cpu() / math.sqrt(PROJECTION)
    return {"position": position, "log_weights": filter.log_weights.cpu(), "step": step}


def stacked(taken: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Snapshots of one run: positions `[S, N, 64]`, log_weights `[S, N]`, step `[S]`."""
    return {
        "positions": torch.stack([s["position"] for s in taken]),
        "log_weights": torch.stack([s["log_weights"] for s in taken]),
        "step": torch.tensor([s["step"] for s in taken]),
    }
