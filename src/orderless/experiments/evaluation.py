"""Scoring a learner on every task, in the three ways particles can be combined."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import metrics
from ..filters.base import ParticleFilter
from ..learner import Learner

COMBINES = ("accuracy", "logits", "probs")


@dataclass
class TaskScore:
    """One task's scores: fractions correct by combination, and what the mixture said."""

    accuracy: dict[str, float]
    nll: float
    ece: float
    predictions: str


@torch.no_grad()
def score_task(learner: Learner, task: int, test_batch: int) -> TaskScore:
    """`accuracy`: weighted mean of the particles' own; `logits`, `probs`: of the mixture."""
    x, y = learner.scenario.test_set(task)
    weights = learner.weights
    right = dict.fromkeys(COMBINES, 0.0)
    chances, answers = [], []
    for xs, ys in zip(x.split(test_batch), y.split(test_batch), strict=True):
        outputs = learner.outputs(xs, task)  # [N, B, C]
        average = ParticleFilter.average
        own = (outputs.argmax(-1) == ys).double().sum(1)
        probabilities = average(outputs.softmax(-1), weights)
        votes = average(outputs.nan_to_num(neginf=-1e30), weights)
        right["accuracy"] += float(average(own, weights))
        right["logits"] += float((votes.argmax(-1) == ys).sum())
        right["probs"] += float((probabilities.argmax(-1) == ys).sum())
        chances.append(probabilities.double().cpu().numpy())
        answers.append(probabilities.argmax(-1).to(torch.uint8).cpu().numpy())
    labels, mixture = y.cpu().numpy(), np.concatenate(chances)
    return TaskScore(
        {name: count / len(labels) for name, count in right.items()},
        metrics.nll(mixture, labels),
        metrics.ece(mixture, labels),
        base64.b64encode(np.concatenate(answers).tobytes()).decode(),
    )


@torch.no_grad()
def plasticity(learner: Learner, task: int, samples: int = 512) -> dict[str, float]:
    """Dormant units, effective rank and weight size of the particle that weighs most."""
    best = int(learner.weights.argmax())
    network = learner.filter.particles[best].eval()
    seen: list[Tensor] = []
    heads = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    hook: Any = heads[-1].register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
    network(learner.scenario.test_set(task)[0][:samples])
    hook.remove()
    features = seen[0].double().cpu().numpy()
    parameters = [p.detach().double().cpu().numpy() for p in network.parameters()]
    return {
        "dormant": metrics.dormant_share(features),
        "effective_rank": metrics.effective_rank(features),
        "mean_abs_weight": metrics.mean_abs_weight(parameters),
    }
