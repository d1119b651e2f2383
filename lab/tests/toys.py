"""What the tests of the lab share, by what it is for; each part begins with a line.

A suite that takes milliseconds, with three tasks of different lengths; points, and networks for
them; files in the official formats; a corridor to walk, policies for it and cells of games; cells
of a report with known numbers; weighted sets; options that make a command short.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import pickle
import struct
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import orderless as ol
from orderless_lab.datasets import load
from orderless_lab.methods.learners.policy import PolicyLearner
from orderless_lab.rl import PPO, Compact, PPOSettings, VectorEnvironment, policy_logits
from orderless_lab.rl.experts import Expert, save_expert
from orderless_lab.runs import Cell, Grid, Store, run_grid
from orderless_lab.runs.cell import CellRecord
from orderless_lab.runs.launch import Listener
from orderless_lab.runs.store import as_json
from orderless_lab.suites import Outline, Preset, Scenario, Task, find_suite, register
from orderless_lab.suites.procgen import PROCGEN_BC, PROCGEN_LIFELONG
from orderless_lab.suites.splitmnist import SplitMNISTSettings, SplitMNISTSuite
from orderless_lab.suites.supervised import outline
from orderless_lab.theory import WeightedSet

# ---------------------------------------------------------------------- the suite `tiny`

SIZES = 24, 48, 34  # training samples: 3, 6 and 4 batches of 8
STEPS = 3, 6, 4
SETTINGS = SplitMNISTSettings(
    hidden=6,
    batch_size=8,
    particles=3,
    lr=0.05,
    fisher_samples=10,
    ewc_strength=1.0,
    si_strength=0.1,
    replay_buffer=12,
    test_batch=12,
    exact_map="relu",
    exact_features=16,
    exact_particles=2,
)


def tiny_scenario(kind: Any = "domain") -> Scenario:
    generator = torch.Generator().manual_seed(0)

    def samples(count: int, task: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(count) % 2
        x = 0.5 * torch.randn(count, 1, 14, 14, generator=generator)
        x[torch.arange(count), 0, 5 * task + 3 * y] += 1.0  # a bright row says the class
        return x, y

    made = [Task(*samples(SIZES[t], t), *samples(20, t), name=f"t{t}") for t in range(3)]
    return Scenario(made, kind=kind)


class TinySuite(SplitMNISTSuite):
    """`loaded` lists the seeds whose tasks were loaded."""

    loaded: list[int] = []

    def presets(self, variant: str) -> Mapping[str, Preset]:
        return {"demo": Preset(SETTINGS, 2), "paper": Preset(SETTINGS, 2)}

    def outline(self, variant: str, settings: Any) -> Outline:
        return outline(variant, 3, 2, (1, 14, 14))

    def load(self, variant: Any, settings: Any, seed: int, root: Any, device: str) -> Scenario:
        self.loaded.append(seed)
        scenario = tiny_scenario(variant)
        if settings.validation:  # what must not be seen is NaN
            for task in scenario.tasks:
                task.x_test.fill_(torch.nan)
            scenario = scenario.validation(settings.validation)
        return scenario


TINY = TinySuite("tiny", "Stripes", "stripes")
register(TINY)


def tiny_cell(
    method: str = "gd",
    order: tuple[int, ...] = (0, 1, 2),
    seed: int = 0,
    scenario: str = "domain",
    index: int = 0,
    **changes: Any,
) -> Cell:
    settings = SETTINGS.changed(**changes)
    return Cell("tiny", scenario, "demo", method, index, order, seed, settings)


def make_run(cell: Cell, folder: Path, device: str = "cpu", **options: Any) -> Any:
    """The run of a cell of any suite."""
    store = Store(folder)
    store.prepare()
    suite = find_suite(cell.benchmark)
    tasks = suite.load(cell.variant, cell.settings, cell.seed, str(folder), device)
    return suite.runner(cell, tasks, store, **options)


def result_of(cell: Cell, folder: Path, **options: Any) -> dict[str, Any]:
    """The cell's record."""
    return as_json(make_run(cell, folder, **options).run("the command"))


def tiny_grid(*methods: str, permutations: int = 1, **changes: Any) -> Grid:
    settings = SETTINGS.changed(**changes)
    return Grid("tiny", "domain", "demo", methods or ("gd",), permutations, 1, settings)


def compute(
    store: Store,
    *methods: str,
    listener: Listener | None = None,
    checkpoint_every: float = 60.0,
    **changes: Any,
) -> int:
    """What is missing of a tiny grid; how many cells that were."""
    grid = tiny_grid(*methods, **changes)
    return run_grid(grid, store, listener=listener, checkpoint_every=checkpoint_every)


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    record = as_json(record)
    del record["duration"]
    record.pop("scoring_duration", None)  # of behaviour cloning
    return record


def stop_after(limit: int) -> Callable[[int], None]:
    """A tick that raises what Ctrl-C does once more than `limit` steps are done.

    Those of earlier runs are counted, too: a run that goes on ticks them at once.
    """
    taken = 0

    def tick(steps: int) -> None:
        nonlocal taken
        taken += steps
        if taken > limit:
            raise KeyboardInterrupt

    return tick


# ---------------------------------------------------------------------- points


def points(kind: Any) -> Scenario:
    """Three tasks of a dozen points."""
    generator = torch.Generator().manual_seed(0)

    def part(count: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(count) % 2
        return torch.randn(count, 4, generator=generator) + y[:, None], y

    return Scenario([Task(*part(12), *part(6)) for _ in range(3)], kind=kind)


def network(outputs: int) -> nn.Module:
    """A network for points."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


# ---------------------------------------------------------------------- files of data sets

# The list in the appendix of the paper, in its order; CIFAR writes "keyboard" for the computer's.
SUPERCLASSES = {
    "aquatic mammals": ["beaver", "dolphin", "otter", "seal", "whale"],
    "fish": ["aquarium fish", "flatfish", "ray", "shark", "trout"],
    "flowers": ["orchid", "poppy", "rose", "sunflower", "tulip"],
    "food containers": ["bottle", "bowl", "can", "cup", "plate"],
    "fruit and vegetables": ["apple", "mushroom", "orange", "pear", "sweet pepper"],
    "household electrical devices": ["clock", "keyboard", "lamp", "telephone", "television"],
    "household furniture": ["bed", "chair", "couch", "table", "wardrobe"],
    "insects": ["bee", "beetle", "butterfly", "caterpillar", "cockroach"],
    "large carnivores": ["bear", "leopard", "lion", "tiger", "wolf"],
    "large man-made outdoor things": ["bridge", "castle", "house", "road", "skyscraper"],
    "large natural outdoor scenes": ["cloud", "forest", "mountain", "plain", "sea"],
    "large omnivores and herbivores": ["camel", "cattle", "chimpanzee", "elephant", "kangaroo"],
    "medium mammals": ["fox", "porcupine", "possum", "raccoon", "skunk"],
    "non-insect invertebrates": ["crab", "lobster", "snail", "spider", "worm"],
    "people": ["baby", "boy", "girl", "man", "woman"],
    "reptiles": ["crocodile", "dinosaur", "lizard", "snake", "turtle"],
    "small mammals": ["hamster", "mouse", "rabbit", "shrew", "squirrel"],
    "trees": ["maple tree", "oak tree", "palm tree", "pine tree", "willow tree"],
    "vehicles 1": ["bicycle", "bus", "motorcycle", "pickup truck", "train"],
    "vehicles 2": ["lawn mower", "rocket", "streetcar", "tank", "tractor"],
}


class Counts(NamedTuple):
    """A data set's root and how many images of each class it has."""

    root: Path
    train: list[int]
    test: list[int]


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_tiny_mnist(root: Path, patch: pytest.MonkeyPatch) -> Counts:
    """MNIST with digit d in 4 + d training and 2 test images, its MD5s put in place."""
    random = np.random.default_rng(0)
    train, test = [4 + digit for digit in range(10)], [2] * 10
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    md5s = {}
    for prefix, counts in (("train", train), ("t10k", test)):
        labels = random.permutation(np.repeat(np.arange(10), counts))
        images = random.integers(0, 256, (len(labels), 28, 28))
        arrays = {"images-idx3": images, "labels-idx1": labels}
        for name, contents in ((f"{prefix}-{k}-ubyte", idx_bytes(v)) for k, v in arrays.items()):
            packed = gzip.compress(contents, mtime=0)
            md5s[name] = (hashlib.md5(packed).hexdigest(), hashlib.md5(contents).hexdigest())
            (folder / f"{name}.gz").write_bytes(packed)
    patch.setattr(load, "MNIST_MD5S", md5s)
    return Counts(root, train, test)


def write_tiny_cifar100(root: Path, patch: pytest.MonkeyPatch) -> Counts:
    """CIFAR-100 with 4 training and 2 test images of each class, its MD5s put in place."""
    random = np.random.default_rng(0)
    fine_names = sorted(name for group in SUPERCLASSES.values() for name in group)
    coarse_of = {n: c for c, group in enumerate(SUPERCLASSES.values()) for n in group}
    contents: dict[str, dict[bytes, object]] = {
        "meta": {
            b"fine_label_names": [n.replace(" ", "_").encode() for n in fine_names],
            b"coarse_label_names": [n.replace(" ", "_").encode() for n in SUPERCLASSES],
        }
    }
    for part, count in (("train", 4), ("test", 2)):
        fine = random.permutation(np.repeat(np.arange(100), count)).tolist()
        contents[part] = {
            b"fine_labels": fine,
            b"coarse_labels": [coarse_of[fine_names[label]] for label in fine],
            b"data": random.integers(0, 256, (len(fine), 3072)).astype(np.uint8),
        }
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for part, value in contents.items():
        (folder / part).write_bytes(pickle.dumps(value, protocol=4))
    md5s = {
        part: hashlib.md5((folder / part).read_bytes()).hexdigest()
        for part in ("train", "test", "meta")
    }
    patch.setattr(load, "CIFAR100_MD5S", md5s)
    return Counts(root, [4] * 100, [2] * 100)


# ---------------------------------------------------------------------- policies in a corridor


class Corridor(VectorEnvironment):
    """Cells 0 ... 5, start at 1; left end: reward -1, right end: +1, both terminate.

    After `limit` steps the episode is truncated. Observations are one-hot float32 `[E, 6]`.
    All levels are the same.
    """

    def __init__(self, n_envs: int, limit: int = 12) -> None:
        super().__init__(n_envs, actions=3)  # left, right, stay
        self.limit = limit
        self.cells = np.ones(n_envs, dtype=np.int64)

    def _frames(self) -> np.ndarray:
        return np.eye(6, dtype=np.float32)[self.cells]

    def _start(self) -> np.ndarray:
        self.cells = np.ones(self.n_envs, dtype=np.int64)
        return self._frames()

    def _step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        moved = self.cells + np.array([-1, 1, 0])[actions]
        self.cells = np.where(self.ended, 1, moved)
        left = self.cells == 0
        right = self.cells == 5
        late = ~self.ended & (self.lengths + 1 >= self.limit)
        rewards = right.astype(np.float64) - left
        return self._frames(), rewards, left | right, late & ~left & ~right

    def switch(self, level: int) -> Any:
        self.level = level
        return self.reset()

    def state_dict(self) -> dict[str, Any]:
        arrays = self.cells, self.first, self.ended, self.returns, self.lengths
        return {"arrays": [torch.from_numpy(array.copy()) for array in arrays]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        arrays = [tensor.numpy().copy() for tensor in state["arrays"]]
        self.cells, self.first, self.ended, self.returns, self.lengths = arrays
        self.observations = self._frames()
        self.started = True


class Walker(nn.Module):
    """A policy and a value for the corridor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.policy = nn.Linear(16, 3)
        self.value = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x.to(self.policy.weight.dtype))
        return self.policy(features), self.value(features).squeeze(-1)


PPO_SETTINGS = PPOSettings(steps=32, minibatches=4, discount=0.95)


def make_ppo(kind: Any, n: int, settings: PPOSettings = PPO_SETTINGS, **options: Any) -> PPO:
    """PPO of n walkers in eight corridors, by Adam."""
    particles = ol.Ensemble(Walker, n, seed=0)
    optimizer = torch.optim.Adam(particles.parameters(), lr=1e-2)
    return PPO(kind(particles, optimizer, max_grad_norm=0.5), Corridor(8), settings, **options)


def averaging(particles: ol.Ensemble) -> ol.AveragingParticles:
    return ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), 0.1))


def weighted_walkers(weights: list[float], device: str = "cpu") -> ol.AveragingParticles:
    """Untrained walkers with these weights."""
    filter = averaging(ol.Ensemble(Walker, len(weights), seed=2, device=device))
    set_weights(filter, weights)
    return filter


def set_weights(filter: Any, weights: list[float]) -> None:
    filter.raw_log_weights.copy_(torch.tensor(weights, dtype=torch.float64).log())


def assert_same_networks(left: ol.Ensemble, right: ol.Ensemble) -> None:
    for ours, theirs in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.equal(ours, theirs)


# ---------------------------------------------------------------------- cells of games

GAME = "fruitbot"  # untrained policies do not last long there
PLAYED = {"envs": 4, "rollout": 8, "minibatches": 2, "steps_per_level": 3 * 32, "bins": 3}
CLONED = {"transitions": 96, "batch_size": 16, "episodes": 2}
GAME_SETTINGS = {
    "procgen-lifelong": PROCGEN_LIFELONG.preset("demo").settings.changed(
        particles=2, fisher_samples=16, **PLAYED
    ),
    "procgen-bc": PROCGEN_BC.preset("demo").settings.changed(particles=2, **CLONED),
}


def tiny_expert(folder: Path, game: str = GAME, seed: int = 0) -> Path:
    """An expert's file without the training."""
    torch.manual_seed(seed)
    random = {"mean": 0.0, "standard_error": 0.0, "episodes": 0}
    returns = {name: {"expert": random, "random": random} for name in ("training", "held_out")}
    facts = {"game": game, "network": "compact", "levels": 5, "envs": 2, "seed": seed, "steps": 0}
    path = folder / f"{game}.safetensors"
    save_expert(path, Expert(Compact(), {**facts, "returns": returns}))
    return path


def game_cell(benchmark: str, method: str, order: tuple[int, ...] = (1, 0), **changes: Any) -> Cell:
    usual = GAME_SETTINGS[benchmark]
    settings = usual.changed(**{key: v for key, v in changes.items() if key in usual.known()})
    return Cell(benchmark, GAME, "demo", method, 0, order, 0, settings)


def make_walker(strength: float | None, device: str = "cpu") -> PolicyLearner:
    particles = ol.Ensemble(Walker, 2, seed=0, device=device)
    optimizer = torch.optim.SGD(particles.parameters(), lr=1e-2)
    filter = ol.AveragingParticles(particles, optimizer)
    ewc = None
    if strength is not None:
        ewc = ol.EWC(particles, strength, fisher="exact", logits=policy_logits)
    settings = PPOSettings(steps=16, minibatches=4)
    return PolicyLearner(Corridor(8), filter, settings, consolidation=ewc)


def walk(learner: PolicyLearner, level: int, rounds: int = 5) -> None:
    """One level from its beginning to its end."""
    learner.begin_level(level)
    for _ in range(rounds):
        learner.collect()
        learner.update()
    learner.end_level()


# ---------------------------------------------------------------------- synthetic cells of a report

TASKS = 5
# method -> (mean accuracy, effect of the order, effect of the seed)
LEVELS = {
    "wpf": (0.72, 0.03, 0.01),
    "averaging": (0.66, 0.03, 0.003),
    "bootstrap": (0.51, 0.002, 0.004),
    "gd": (0.64, 0.03, 0.05),
    "ewc": (0.66, 0.05, 0.04),
    "ewc+wpf": (0.74, 0.02, 0.01),
    "lwf": (0.70, 0.06, 0.03),
    "lwf+wpf": (0.79, 0.03, 0.01),
    "si": (0.62, 0.05, 0.04),
    "si+wpf": (0.69, 0.05, 0.01),
    "product": (0.97, 0.0, 0.002),
}


def make_cell(method: str, order_index: int, seed: int, **changes: Any) -> dict[str, Any]:
    """One finished cell; the same arguments always give the same numbers."""
    mean, order_effect, seed_effect = LEVELS.get(method, (0.6, 0.03, 0.02))
    orders = np.random.default_rng(order_index)
    order = [int(task) for task in orders.permutation(TASKS)]
    # Orders move every method the same way, as bad orders do; seeds move each method by itself.
    shift = order_effect * orders.normal(size=TASKS)
    shift = shift + seed_effect * np.random.default_rng([seed, len(method), ord(method[0])]).normal(
        size=TASKS
    )
    matrix = np.full((TASKS + 1, TASKS), 0.5)
    for place, task in enumerate(order, start=1):
        matrix[place:, task] = np.linspace(0.98, mean, TASKS + 1 - place)
    matrix[-1] = np.clip(mean + shift, 0, 1)
    labels = np.random.default_rng([seed, order_index]).integers(0, 2, size=(TASKS, 40))
    cell = {
        "benchmark": "splitmnist",
        "variant": "domain",
        "preset": "table1",
        "method": method,
        "order_index": order_index,
        "order": order,
        "seed": seed,
        "task_names": ["0v1", "2v3", "4v5", "6v7", "8v9"],
        "particles": 100,
        "settings": {"lr": 0.001, "batch": 128},
        "scores": {
            "particles": matrix.tolist(),
            "logits": (matrix * 0.9).tolist(),
            "probs": (matrix * 0.8).tolist(),
        },
        "nll": [0.3] * TASKS,
        "ece": [0.1] * TASKS,
        "predictions": [
            base64.b64encode(row.astype(np.uint8).tobytes()).decode() for row in labels
        ],
        "trace": {"step": [0, 1], "ess": [100.0, 5.0 + seed], "largest_weight": [0.01, 0.5]},
        "log_evidence": -100.0 - seed,
        "temperature": 1.0,
        "alive": 100,
        "plasticity": {"dormant": [0.1 * (seed + 1)] * TASKS},
        "versions": {"orderless": "0.1.0", "numpy": "2.4.6"},
        "device": "cpu",
        "duration": 1.5,
        "command": "orderless run splitmnist --preset table1",
    }
    return cell | changes


def make_cells(*methods: str, orders: int = 1, seeds: int = 1, **changes: Any) -> list[Any]:
    """Of every method in these orders from these seeds."""
    places = itertools.product(methods, range(orders), range(seeds))
    return [make_cell(*place, **changes) for place in places]


def constant(level: float, untrained: float | None = None) -> dict[str, Any]:
    """The scores of a cell that knows as much of every task at any time."""
    matrix = np.full((TASKS + 1, TASKS), level)
    matrix[0] = level if untrained is None else untrained
    return {"particles": matrix.tolist()}


def write_run(directory: Path, cells: list[dict[str, Any]]) -> Path:
    """A run directory of these cells, as `orderless run` writes it."""
    store = Store(directory)
    store.prepare()
    for number, cell in enumerate(cells):
        store.write_cell(f"{number:04d}", CellRecord.model_validate(as_json(cell)))
    return directory


# ---------------------------------------------------------------------- weighted sets of the theory


def weighted_set(positions, weights):
    """A set on a line."""
    places = torch.tensor(positions, dtype=torch.float64).unsqueeze(1)
    return WeightedSet(places, torch.tensor(weights, dtype=torch.float64).log())


def point(*coordinates):
    return WeightedSet(torch.tensor([coordinates], dtype=torch.float64), torch.zeros(1))


def run_of(update, start, losses):
    return reduce(update, losses, start)


# ---------------------------------------------------------------------- options of small runs

SMALL = ["--preset", "demo", "--particles", "2", "--workers", "1", "--permutations", "1"]
SMALL += ["--set", "iterations=2", "--set", "hidden=4", "--set", "fisher_samples=8"]
TUNED = ["--preset", "demo", "--set", "iterations=30", "--set", "hidden=8"]
