"""Five learners on one small problem, in as many ways as there are columns in the matrix.

    python -m lab.tests.system.equality.subjects OUT ROW... [--device cuda] [--threads 2]

fits these learners once and writes what they have learned and what they answer.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import orderless as ol

ROWS = ("exact head, exact maps", "exact head, float backbone", "product", "wpf", "sir")
N, CLASSES, SAMPLES = 3, 4, 120
TASKS = (0, 1, 2)
cross_entropy = ol.per_particle(F.cross_entropy)

Result = dict[str, Any]


def images(count: int, seed: int) -> Tensor:
    """Of whole numbers: torch's normal ones have other last bits with other vector instructions."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-512, 513, (count, 3, 12, 12), generator=generator) / 256.0


def task(number: int) -> tuple[Tensor, Tensor]:
    """Samples of one task; what decides their label is in another place in each."""
    x = images(SAMPLES, number)
    return x, x[:, :2, number, :2].flatten(1).argmax(1)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def frozen() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.Tanh()]
        return nn.Sequential(*layers)


def make(row: str, device: Any = "cpu") -> Any:
    """A learner that has learned nothing."""
    options: dict[str, Any] = {"n": N, "seed": 0, "device": device}
    if row == "exact head, exact maps":
        maps = ol.Ensemble(lambda: ol.features.RandomReLU(432, 200), **options)
        return ol.ExactHead(maps, classes=CLASSES)
    if row == "exact head, float backbone":
        net = frozen()
        maps = ol.Ensemble(
            lambda: ol.features.Backbone(net, project=200, inputs=images(8, 99)), **options
        )
        return ol.ExactHead(maps, classes=CLASSES)
    particles = ol.Ensemble(network, **options)
    if row == "product":
        return ol.PosteriorProduct(particles, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5))
    if row == "wpf":
        optimizer = torch.optim.SGD(particles.parameters(), lr=0.1)
        return ol.WeightedParticleFilter(particles, optimizer)
    return ol.BootstrapParticleFilter(particles, perturbation=0.02, variant="sir")


def learn(learner: Any, data: tuple[Tensor, Tensor], batch: int = 20) -> None:
    """One pass over the samples of a task."""
    x, y = (part.to(learner.particles.device) for part in data)
    for rows in torch.arange(len(x), device=x.device).split(batch):
        if isinstance(learner, ol.ExactHead):
            learner.update(x[rows], y[rows])
        else:
            learner.step(lambda rows=rows: cross_entropy(learner.particles(x[rows]), y[rows]))
    if isinstance(learner, ol.PosteriorProduct):
        learner.end_task((x, y))


def fitted(row: str, tasks: Any = TASKS, batch: int = 20, **options: Any) -> Any:
    learner = make(row, **options)
    for number in tasks:
        learn(learner, task(number), batch)
    return learner


def result(learner: Any) -> Result:
    """What it has learned, and its probabilities for other images."""
    x = images(64, 77).to(learner.particles.device)
    answers = learner.predict(x).cpu().double()
    state = learner.state_dict()
    if isinstance(learner, ol.ExactHead):
        state = state["sums"]
    leaves = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    return {"state": [leaf.cpu().double() for leaf in leaves], "answers": answers}


def difference(ours: Result, theirs: Result) -> dict[str, float]:
    """The largest absolute differences: in what was learned, and in what is answered."""
    pairs = list(zip(ours["state"], theirs["state"], strict=True))
    state = [float((a - b).abs().max()) for a, b in pairs if a.numel()]
    answers = float((ours["answers"] - theirs["answers"]).abs().max())
    return {"learned": max(state), "answered": answers}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("rows", nargs="+", choices=ROWS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = {row: result(fitted(row, device=options.device)) for row in options.rows}
    torch.save(found, options.out)


if __name__ == "__main__":
    main()
