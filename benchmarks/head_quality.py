"""Calibration of the exact head, and the ways in which its tasks can compete.

    python benchmarks/head_quality.py [--features 512] [--mnist 60000] [--only tasks]

Calibration: the expected calibration error on test data. Tasks: accuracy of the
label on a held-out fifth of the training data, where classes come in groups (digits in pairs,
CIFAR-100's in fives or superclasses) and the head has a column per (task, label): by the highest
column, and by the sum of probabilities over tasks. Every head has two maps of random features.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

import orderless as ol
from orderless.metrics import ece
from orderless_lab.scenarios.datasets import load_cifar100, load_mnist, load_mnist_5k
from timing import print_table


class Data(NamedTuple):
    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    make_map: Callable[[], nn.Module]


def small(name: str, features: int) -> Data:
    """One of scikit-learn's data sets, standardised; two thirds of it are training data."""
    from sklearn import datasets

    x, y = (torch.tensor(part) for part in getattr(datasets, f"load_{name}")(return_X_y=True))
    x = ((x - x.mean(0)) / (x.std(0) + 1e-9)).float()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y, cut = x[order], y[order].long(), 2 * len(x) // 3

    def make_map() -> nn.Module:
        return ol.features.RandomReLU(x.shape[1], features)

    return Data(name, x[:cut], y[:cut], x[cut:], y[cut:], make_map)


def all_data(features: int, mnist: int) -> list[Data]:
    def digits() -> nn.Module:
        return ol.features.RandomReLU(784, features, bias_scale=0.0)

    def images() -> nn.Module:
        return ol.features.RandomConvolution(3, 32, features // 4, stride=2)

    found = []
    for name, ((x, y), (xt, yt)), count in (
        ("MNIST, embedded", load_mnist_5k(), 4000),
        ("MNIST, embedded", load_mnist_5k(), 500),
        ("MNIST", load_mnist(), mnist),
    ):
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count]
        parts = x[rows].float().flatten(1) / 255, y[rows], xt.float().flatten(1) / 255, yt
        found.append(Data(name, *parts, digits))
    found += [small(name, features // 2) for name in ("digits", "breast_cancer", "wine")]
    cifar = load_cifar100()
    x, xt = cifar.x[:5000].float() / 255, cifar.x_test[:1500].float() / 255
    for name, y, yt in (
        ("CIFAR-100", cifar.fine, cifar.fine_test),
        ("CIFAR-100, superclasses", cifar.coarse, cifar.coarse_test),
    ):
        found.append(Data(name, x, y[:5000], xt, yt[:1500], images))
    return found


def fitted(data: Data) -> ol.ExactHead:
    maps = ol.Ensemble(data.make_map, 2, seed=0)
    head = ol.ExactHead(maps, classes=int(data.y.max()) + 1)
    head.update(data.x, data.y)
    return head


def calibration(sets: list[Data]) -> Iterator[list[str]]:
    for data in sets:
        answers = fitted(data).predict(data.x_test)
        right = (answers.argmax(1) == data.y_test).double().mean()
        error = ece(answers.numpy(), data.y_test.numpy())
        yield [data.name, f"{len(data.x):,}", f"{100 * right:.1f}", f"{error:.4f}"]


def tasks(sets: list[Data]) -> Iterator[list[str]]:
    digits, few, fine, coarse = *sets[:2], *sets[-2:]
    pairs = torch.stack([coarse.y, fine.y], 1).unique(dim=0)  # a superclass's classes in a row
    ordered = fine._replace(name=coarse.name, y=pairs[:, 1].argsort()[fine.y])
    for data, size in ((digits, 2), (few, 2), (fine, 5), (ordered, 5)):
        cut = 4 * len(data.x) // 5
        task, label = data.y // size, data.y % size
        row = []
        for across in ("max", "probs"):
            maps = ol.Ensemble(data.make_map, 2, seed=0)
            head = ol.ExactHead(maps, across_tasks=across)
            for each in task[:cut].unique().tolist():
                own = (task[:cut] == each).nonzero()[:, 0]
                head.update(data.x[own], label[own], task=each)
            right = head.predict(data.x[cut:]).argmax(1) == label[cut:]
            row.append(f"{100 * right.double().mean():.1f}")
        yield [data.name, f"{cut:,}", *row]


# section title -> function that measures it
TABLES: dict[str, tuple[list[str], Callable[[list[Data]], Iterator[list[str]]]]] = {
    "calibration": (["data", "samples", "accuracy, %", "ECE"], calibration),
    "tasks": (["data", "samples", "highest column, %", "sum over tasks, %"], tasks),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--mnist", type=int, default=60000)
    parser.add_argument("--only", choices=TABLES)
    given = parser.parse_args()
    sets = all_data(given.features, given.mnist)
    for name, (headings, rows) in TABLES.items():
        if given.only in (None, name):
            print_table(headings, rows(sets))
            print()


if __name__ == "__main__":
    main()
