"""What the tests of the lab share: a suite that takes milliseconds, networks for points, files.

The suite `tiny` has three tasks of different lengths, images of stripes. `points` are three tasks
of a dozen points. `write_tiny_mnist` and `write_tiny_cifar100` write files in the official formats.
"""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from orderless_lab.datasets import load
from orderless_lab.runs import Cell, Grid, Store, run_grid
from orderless_lab.runs.launch import Listener
from orderless_lab.runs.store import as_json
from orderless_lab.runs.supervised import SupervisedRunner
from orderless_lab.suites import Outline, Preset, Scenario, Task, register
from orderless_lab.suites.splitmnist import SplitMNISTSettings, SplitMNISTSuite
from orderless_lab.suites.supervised import outline

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


def tiny_scenario(kind: Any = "domain", tasks: int = 3) -> Scenario:
    generator = torch.Generator().manual_seed(0)

    def samples(count: int, task: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(count) % 2
        x = 0.5 * torch.randn(count, 1, 14, 14, generator=generator)
        x[torch.arange(count), 0, 5 * task + 3 * y] += 1.0  # a bright row says the class
        return x, y

    made = [Task(*samples(SIZES[t], t), *samples(20, t), name=f"t{t}") for t in range(tasks)]
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


def make_run(cell: Cell, folder: Path, **options: Any) -> SupervisedRunner:
    store = Store(folder)
    store.prepare()
    tasks = tiny_scenario(cell.variant, len(cell.order))
    return SupervisedRunner(cell, tasks, store, **options)


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


def write_tiny_mnist(root: Path, patch: pytest.MonkeyPatch, *, zipped: bool = True) -> Counts:
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
            file = folder / (name + ".gz" if zipped else name)
            file.write_bytes(packed if zipped else contents)
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
