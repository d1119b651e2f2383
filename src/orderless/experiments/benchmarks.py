"""The benchmarks by name: their scenario and their network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..methods.policy_settings import PolicySettings
from ..methods.settings import Settings
from ..rl.experts import load_expert
from ..rl.networks import find_network
from ..rl.procgen import GAMES, parse_levels
from ..rl.tasks import ClonedTasks, ProcgenTasks, transitions_folder
from ..scenarios import Scenario, SplitCIFAR100, SplitMNIST


@dataclass(frozen=True)
class Benchmark:
    """`scenario(scenario, settings, seed, root, device)` and `network(scenario, settings)`.

    `scenarios` names what may be asked for: ways to split a data set, or games. `kind` tells which
    methods belong to it: "supervised", "cloning" or "lifelong". `prepare(scenario, say)` gets what
    all its cells need.
    """

    name: str
    description: str
    scenario: Callable[[str, Any, int, str | None, str], Any]
    network: Callable[[Any, Any], Callable[[], nn.Module]]
    scenarios: tuple[str, ...] = ("domain", "task", "class")
    kind: str = "supervised"
    prepare: Callable[[Any, Callable[[str], None]], None] = lambda scenario, say: None


def split_mnist(
    kind: str, settings: Settings, seed: int, root: str | None, device: str
) -> Scenario:
    return SplitMNIST(
        kind,  # type: ignore[arg-type]
        root=root,
        source=settings.source,  # type: ignore[arg-type]
        assign=settings.assign,  # type: ignore[arg-type]
        assign_seed=seed,
        validation=settings.validation,
        normalize=settings.normalize,  # type: ignore[arg-type]
        device=device,
    )


def split_cifar100(
    kind: str, settings: Settings, seed: int, root: str | None, device: str
) -> Scenario:
    return SplitCIFAR100(
        kind,  # type: ignore[arg-type]
        root=root,
        assign=settings.assign,  # type: ignore[arg-type]
        assign_seed=seed,
        validation=settings.validation,
        augment=settings.augment == "flip-crop",
        device=device,
    )


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def released_mnist(outputs: int) -> nn.Module:
    """The network of the paper's code, with a linear output instead of its Linear + ReLU."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *mlp(16 * 28 * 28, 400, outputs),  # type: ignore[misc]
    )


def released_cifar(outputs: int) -> nn.Module:
    """The convolutional network of the paper's code, with a linear output."""
    layers: list[nn.Module] = []
    before = 3
    for width, stride, padding in ((16, 1, 1), (32, 2, 1), (64, 2, 1), (128, 2, 1), (256, 2, 0)):
        layers += [nn.Conv2d(before, width, 3, stride, padding), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), *mlp(256, 2000, outputs))  # type: ignore[misc]


@lru_cache
def maker(network: Callable[..., nn.Module], *sizes: int) -> Callable[[], nn.Module]:
    """The same function for the same network, so that initial networks can be kept by it."""
    return partial(network, *sizes)


def mnist_network(scenario: Scenario, settings: Settings) -> Callable[[], nn.Module]:
    if settings.network == "released":
        return maker(released_mnist, scenario.outputs)
    return maker(mlp, 784, settings.hidden, scenario.outputs)


def cifar_network(scenario: Scenario, settings: Settings) -> Callable[[], nn.Module]:
    return maker(released_cifar, scenario.outputs)


def procgen_tasks(
    game: str, settings: PolicySettings, seed: int, root: str | None, device: str
) -> ProcgenTasks:
    return ProcgenTasks(game, parse_levels(settings.levels), torch.device(device))


def cloned_tasks(
    game: str, settings: PolicySettings, seed: int, root: str | None, device: str
) -> ClonedTasks:
    return ClonedTasks(
        game,
        parse_levels(settings.levels),
        torch.device(device),
        load_expert(game, None if settings.expert is None else Path(settings.expert)),
        transitions_folder(root),
        settings.transitions,
        settings.collect_seed,
    )


@lru_cache
def policy_network(name: str, value: bool) -> Callable[[], nn.Module]:
    return partial(find_network(name), value=value)


BENCHMARKS: dict[str, Benchmark] = {
    b.name: b
    for b in (
        Benchmark("splitmnist", "5 tasks of 2 digits", split_mnist, mnist_network),
        Benchmark("splitcifar100", "20 tasks of 5 classes", split_cifar100, cifar_network),
        Benchmark(
            "procgen-bc",
            "levels of a game, cloned from an expert one after another",
            cloned_tasks,
            lambda tasks, settings: policy_network(settings.network, False),
            GAMES,
            "cloning",
            ClonedTasks.prepare,
        ),
        Benchmark(
            "procgen-lifelong",
            "levels of a game, played one after another",
            procgen_tasks,
            lambda tasks, settings: policy_network(settings.network, True),
            GAMES,
            "lifelong",
        ),
    )
}


def find_benchmark(name: str, *others: str) -> Benchmark:
    """A benchmark by its name; `others` are what else could have been asked for."""
    if name not in BENCHMARKS:
        known = ", ".join([*BENCHMARKS, *others])
        raise ValueError(f"unknown benchmark {name!r}: choose from {known}")
    return BENCHMARKS[name]
