"""SplitMNIST (5 tasks of 2 digits) and SplitCIFAR100 (20 tasks of 5 classes)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from orderless.tasks import Task

from ..datasets.load import Cifar100, load_cifar100, load_mnist, load_mnist_5k
from .augment import flip_and_crop, imagenet_normalize, to_symmetric, to_unit
from .scenario import Kind, Scenario
from .streams import keyed_generator

Assign = Literal["fixed", "random"]


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
        _one_of("source", source, ("full", "embedded"))
        _one_of("normalize", normalize, ("unit", "symmetric"))
        groups = assigned([[2 * t, 2 * t + 1] for t in range(5)], assign, assign_seed)
        (x, y), (x_test, y_test) = load_mnist(root) if source == "full" else load_mnist_5k()
        shape = (-1, 784) if flatten else (-1, 1, 28, 28)
        names = [f"{first}v{second}" for first, second in groups]
        data = x.view(shape), y, x_test.view(shape), y_test
        tasks = split_into_tasks(data, groups, names, validation, device)
        transform = to_unit if normalize == "unit" else to_symmetric
        super().__init__(tasks, kind=kind, name="splitmnist", transform=transform)


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


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def assigned(fixed: list[list[int]], assign: str, seed: int) -> list[list[int]]:
    """The classes of each task, sorted by their labels within the task."""
    _one_of("assign", assign, ("fixed", "random"))
    if assign == "fixed":
        return fixed
    classes = torch.tensor(sorted(c for group in fixed for c in group))
    shuffled = classes[torch.randperm(len(classes), generator=keyed_generator("assign", seed))]
    return shuffled.view(len(fixed), -1).tolist()


def split_into_tasks(
    data: tuple[Tensor, Tensor, Tensor, Tensor],
    groups: Sequence[Sequence[int]],
    names: Sequence[str],
    validation: float,
    device: torch.device | str,
) -> list[Task]:
    """A task for each group of the classes in (x, y, x_test, y_test)."""
    (x, y, x_test, y_test), tasks = data, []
    for group, name in zip(groups, names, strict=True):
        label = torch.full((1 + int(y.max()),), -1)
        label[list(group)] = torch.arange(len(group))
        train, test = label[y] >= 0, label[y_test] >= 0
        tasks.append(Task(x[train], label[y[train]], x_test[test], label[y_test[test]], name=name))
    if validation:
        tasks = Scenario(tasks).validation(validation).tasks
    return [task.to(device) for task in tasks]
