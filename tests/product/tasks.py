"""Small tasks and filters for the tests of the product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tests.common import normal, train
from torch import Tensor, nn

import orderless as ol

Tasks = Sequence[tuple[Tensor, Tensor]]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def convolutional() -> nn.Module:
    """Running statistics, channels and positions besides."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(48),
        nn.Linear(48, 3),
    )


def five_tasks() -> Tasks:
    centres, y = normal(5, 3, 6, seed=1), torch.arange(24) % 3
    return [(centres[t][y] + 0.5 * normal(24, 6, seed=2 + t), y) for t in range(5)]


def product(
    make_model: Callable[[], nn.Module] = mlp, n: int = 2, lr: float = 0.1, **options: object
) -> ol.PosteriorProduct:
    particles = ol.Ensemble(make_model, n, seed=0)
    return ol.PosteriorProduct(
        particles,
        lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.5),
        **options,  # type: ignore[arg-type]
    )


def learn(pf: ol.PosteriorProduct, task: tuple[Tensor, Tensor]) -> None:
    x, y = task
    train(pf, zip(x.split(8), y.split(8), strict=True))
    pf.end_task(task)


def learned(order: Sequence[int], **options: object) -> ol.PosteriorProduct:
    pf, tasks = product(**options), five_tasks()  # type: ignore[arg-type]
    for task in order:
        learn(pf, tasks[task])
    return pf


def same_bits(a: ol.PosteriorProduct, b: ol.PosteriorProduct) -> bool:
    ours, theirs = a.networks.state_dict(), b.networks.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
