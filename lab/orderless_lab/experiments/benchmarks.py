"""The benchmarks by name. Only their functions, which make scenarios and networks, import torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import scenarios
from ..rl.games import GAMES, parse_levels

if TYPE_CHECKING:
    from torch import nn

    from ..methods.policy_settings import PolicySettings
    from ..methods.settings import Settings, SharedSettings
    from ..rl.tasks import ProcgenTasks
    from ..scenarios import Scenario


@dataclass(frozen=True)
class Benchmark:
    """Tasks and a network for them; `prepare(scenario, say)` prepares what all its cells need."""

    name: str
    description: str
    # of (scenario or game, settings, seed, root, device), and of (scenario, settings)
    scenario: Callable[[str, Any, int, str | None, str], Any]
    network: Callable[[Any, Any], Callable[[], nn.Module]]
    scenarios: tuple[str, ...] = ("domain", "task", "class")  # or games; the first is the default
    kind: str = "supervised"  # of its methods; or "cloning", "lifelong"
    prepare: Callable[[Any, Callable[[str], None]], None] = lambda scenario, say: None
    tasks: int | None = None  # their number, if it is known


# The splits in `scenarios`, each with its options besides those that all have.
SPLITS: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "SplitMNIST": lambda s: {"source": s.source, "normalize": s.normalize},
    "SplitCIFAR100": lambda s: {"augment": s.augment == "flip-crop"},
    "Intents": lambda s: {"source": s.sentences},
}


def split_scenario(
    name: str, kind: str, settings: Settings, seed: int, root: str | None, device: str
) -> Scenario:
    where: Any = {"root": root, "device": device, "assign_seed": seed, **SPLITS[name](settings)}
    make = getattr(scenarios, name)
    return make(kind, assign=settings.assign, validation=settings.validation, **where)


@lru_cache
def maker(
    network: Callable[..., nn.Module], *sizes: int, **options: bool
) -> Callable[[], nn.Module]:
    """The same function for the same arguments, so that initial networks can be cached by it."""
    return partial(network, *sizes, **options)


def mlp_network(scenario: Scenario, settings: Settings) -> Callable[[], nn.Module]:
    from ..networks import mlp

    if settings.network != "mlp":
        known = {"released": "splitmnist and splitcifar100", "wide": "splitcifar100"}
        where = known[settings.network]
        raise ValueError(f"network={settings.network} is for {where}: use network=mlp")
    return maker(mlp, math.prod(scenario.input_shape), settings.hidden, scenario.outputs)


def mnist_network(scenario: Scenario, settings: Settings) -> Callable[[], nn.Module]:
    from ..networks import released_mnist

    if settings.network == "released":
        return maker(released_mnist, scenario.outputs)
    return mlp_network(scenario, settings)


def cifar_network(scenario: Scenario, settings: Settings) -> Callable[[], nn.Module]:
    from ..networks import released_cifar, wide_cifar

    if settings.network == "wide":
        return maker(wide_cifar, settings.hidden, scenario.outputs)
    return maker(released_cifar, scenario.outputs)


def procgen_tasks(
    cloned: bool, game: str, settings: PolicySettings, seed: int, root: str | None, device: str
) -> ProcgenTasks:
    import torch

    from ..rl.experts import load_expert
    from ..rl.tasks import ClonedTasks, ProcgenTasks, transitions_folder

    what = game, parse_levels(settings.levels), torch.device(device)
    if not cloned:
        return ProcgenTasks(*what)
    expert = load_expert(game, None if settings.expert is None else Path(settings.expert))
    collected = transitions_folder(root), settings.transitions, settings.collect_seed
    return ClonedTasks(*what, expert, *collected)


def policy_network(value: bool, tasks: Any, settings: PolicySettings) -> Callable[[], nn.Module]:
    from ..rl.networks import find_network

    return maker(find_network(settings.network), value=value)


digits, photos, sentences = (partial(split_scenario, name) for name in SPLITS)
_known = (
    Benchmark("splitmnist", "5 tasks of 2 digits", digits, mnist_network),
    Benchmark("splitcifar100", "20 tasks of 5 classes", photos, cifar_network),
    Benchmark(
        "intents",
        "what a sentence wants: features of a frozen sentence encoder, 7 to 10 tasks",
        sentences,
        mlp_network,
        ("class", "task", "domain"),
    ),
    Benchmark(
        "procgen-bc",
        "levels of a game, cloned from an expert one after another",
        partial(procgen_tasks, True),
        partial(policy_network, False),
        GAMES,
        "cloning",
        lambda tasks, say: tasks.prepare(say),
    ),
    Benchmark(
        "procgen-lifelong",
        "levels of a game, played one after another",
        partial(procgen_tasks, False),
        partial(policy_network, True),
        GAMES,
        "lifelong",
    ),
)
BENCHMARKS: dict[str, Benchmark] = {each.name: each for each in _known}


def find_benchmark(name: str) -> Benchmark:
    """A benchmark by its name, or a user's own."""
    if ":" in name:
        return own_benchmark(name)
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise ValueError(f"unknown benchmark {name!r}: choose from {known} or your own module:name")
    return BENCHMARKS[name]


@lru_cache(maxsize=4)
def own_benchmark(reference: str) -> Benchmark:
    """The benchmark of a user's own tasks, `module:name`."""
    from .own import find_tasks, make_scenario

    given = find_tasks(reference)
    usual = getattr(given, "kind", "domain")
    kinds = usual, *(kind for kind in ("domain", "task", "class") if kind != usual)
    build, tasks = partial(make_scenario, reference, given), len(given)
    return Benchmark(reference, "your own tasks", build, mlp_network, kinds, tasks=tasks)


@dataclass
class Scenarios:
    """`scenarios[seed]`, loaded on first use; one for all seeds unless classes are random."""

    benchmark: str
    kind: str
    settings: SharedSettings
    root: str | None
    device: str
    _loaded: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getitem__(self, seed: int) -> Any:
        key = self.settings.seed_of_tasks(seed)
        if key not in self._loaded:
            self._loaded.clear()
            build = find_benchmark(self.benchmark).scenario
            self._loaded[key] = build(self.kind, self.settings, key, self.root, self.device)
        return self._loaded[key]

    def __getstate__(self) -> dict[str, object]:
        """Other processes load the data themselves."""
        return {**self.__dict__, "_loaded": {}}
