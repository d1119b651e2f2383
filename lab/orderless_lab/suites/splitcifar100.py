"""SplitCIFAR100: the superclasses of CIFAR-100 as 20 tasks of five classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..datasets.load import Cifar100, load_cifar100
from .base import Outline, Preset
from .scenario import Kind, Scenario, to_unit
from .supervised import (
    Assign,
    SupervisedSettings,
    SupervisedSuite,
    assigned,
    maker,
    mlp,
    outline,
    split_into_tasks,
)

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class SplitCIFAR100(Scenario):
    """CIFAR-100 in 20 tasks, its superclasses in CIFAR's order, of five classes each.

    A class's label is its place (0-4) in its superclass's alphabetical list. Inputs are
    [B, 3, 32, 32] with ImageNet's mean and standard deviation.

    Args:
        kind, root, assign_seed, validation, device: as for `SplitMNIST`.
        assign: "random" assigns classes to tasks at random.
        augment: flip and crop training batches at random (padding 4).
    """

    def __init__(
        self,
        kind: Kind = "domain",
        *,
        root: str | Path | None = None,
        assign: Assign = "fixed",
        assign_seed: int = 0,
        validation: float = 0.0,
        augment: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        cifar = load_cifar100(root)
        groups = assigned(superclasses(cifar), assign, assign_seed)
        readable = [name.replace("_", " ") for name in cifar.fine_names]
        names = [name.replace("_", " ") for name in cifar.coarse_names]
        if assign == "random":
            names = [", ".join(readable[c] for c in group) for group in groups]
        data = cifar.x, cifar.fine, cifar.x_test, cifar.fine_test
        super().__init__(
            split_into_tasks(data, groups, names, validation, device),
            kind=kind,
            name="splitcifar100",
            augment=flip_and_crop if augment else None,
            transform=imagenet_normalize,
        )


def superclasses(data: Cifar100) -> list[list[int]]:
    """The fine labels of each coarse label, sorted by name."""
    pairs = torch.stack([data.coarse, data.fine], dim=1).unique(dim=0).tolist()
    groups: list[list[int]] = [[] for _ in data.coarse_names]
    for coarse, fine in sorted(pairs, key=lambda pair: data.fine_names[pair[1]]):
        groups[coarse].append(fine)
    return groups


def imagenet_normalize(x: Tensor) -> Tensor:
    """Bytes to ImageNet's mean 0 and standard deviation 1 per channel: [B, 3, H, W] -> same."""
    mean, std = _imagenet_constants(x.device)
    return to_unit(x).sub_(mean).div_(std)


@lru_cache
def _imagenet_constants(device: torch.device) -> Tensor:
    # cached on the device: copying them for every batch would cost more than the arithmetic
    return torch.tensor([IMAGENET_MEAN, IMAGENET_STD], device=device).view(2, 1, 3, 1, 1)


def flip_and_crop(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Random horizontal flip, and random crop of the image padded with black on all sides.

    x: [B, C, H, W]; each image gets its own flip (probability 1/2) and its own offset, uniform
    over the (2 * padding + 1)^2 places. The whole batch is gathered by one indexing operation.
    """
    batch, channels, height, width = x.shape
    offsets = torch.randint(0, 2 * padding + 1, (2, batch), generator=generator)
    flips = torch.randint(0, 2, (1, batch), generator=generator)
    top, left, flip = torch.cat([offsets, flips]).to(x.device, non_blocking=True)[:, :, None]
    rows = top + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device)
    columns = left + torch.where(flip.bool(), columns.flip(0), columns)
    padded = F.pad(x, [padding] * 4)
    which = torch.arange(batch, device=x.device).view(batch, 1, 1, 1)
    channel = torch.arange(channels, device=x.device).view(1, channels, 1, 1)
    return padded[which, channel, rows[:, None, :, None], columns[:, None, None, :]]


def wide_cifar(channels: int, outputs: int) -> nn.Module:
    """One wide convolution, averaged over quarters of the image, and a linear head."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 6, stride=3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, outputs),
    )


def released_cifar(outputs: int) -> nn.Module:
    """The convolutional network of the paper's code, with a linear output."""
    layers: list[nn.Module] = []
    before = 3
    for width, stride, padding in ((16, 1, 1), (32, 2, 1), (64, 2, 1), (128, 2, 1), (256, 2, 0)):
        layers += [nn.Conv2d(before, width, 3, stride, padding), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), *mlp(256, 2000, outputs))  # type: ignore[misc]


class SplitCIFAR100Settings(SupervisedSettings):
    """Settings of SplitCIFAR100."""

    augment: Literal["flip-crop", "none"] = "flip-crop"
    """Training images: "flip-crop" (at random), or "none" (as they are)."""
    network: Literal["released", "wide"] = "released"
    """"released" (the convolutional network of the paper's code) or "wide" (one convolution of
    `hidden` channels)."""


class SplitCIFAR100Suite(SupervisedSuite):
    settings: ClassVar[type[SupervisedSettings]] = SplitCIFAR100Settings

    def presets(self, variant: str) -> Mapping[str, Preset]:
        make = self.settings
        strong = {"assign": "random", "optimizer": "adam", "iterations": 2000, "particles": 1}
        small = {"network": "wide", "hidden": 16, "augment": "none", "iterations": 200}
        small |= {"lr": 0.1, "particles": 4, "fisher_samples": 50, "product_lr": 0.05}
        # features of photographs are slow: scored once, all methods take minutes on two cores
        small |= {"exact_features": 256, "exact_particles": 1, "score_after": "last"}
        return {
            "table1": Preset(make(lr=1e-2), 10, 3),
            "table1-low": Preset(make(lr=1e-4), 10, 3),
            "table1-high": Preset(make(lr=1e-1), 10, 3),
            "table1-adam": Preset(make(optimizer="adam", adam_lr=1e-4), 10, 3),
            "demo": Preset(self.demo(**small).settings, 2, 1),
            "paper": Preset(make(batch_size=8, lr=0.01, init="perturb"), 10, 1),
            "strong": Preset(make(**strong, fisher_samples=None), 1, 20),
        }

    def outline(self, variant: str, settings: Any) -> Outline:
        return outline(variant, 20, 5, (3, 32, 32))

    def load(
        self, variant: Any, settings: Any, seed: int, root: str | None, device: str
    ) -> SplitCIFAR100:
        return SplitCIFAR100(
            variant,
            root=root,
            assign=settings.assign,
            assign_seed=seed,
            validation=settings.validation,
            augment=settings.augment == "flip-crop",
            device=device,
        )

    def network(self, shapes: Any, settings: Any) -> Callable[[], nn.Module]:
        if settings.network == "wide":
            return maker(wide_cifar, settings.hidden, shapes.outputs)
        return maker(released_cifar, shapes.outputs)


SPLIT_CIFAR100 = SplitCIFAR100Suite("splitcifar100", "SplitCIFAR100", "20 tasks of 5 classes")
