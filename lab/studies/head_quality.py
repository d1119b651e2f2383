"""Calibration of the exact head, and the ways in which its tasks can compete.

    python lab/studies/head_quality.py [--features 512] [--mnist 60000] [--only tasks] [--json FILE]

Calibration: the expected calibration error on test data. Tasks: accuracy of the label on a held-out
fifth of the training data, where classes come in groups (digits in pairs, CIFAR-100's in fives or
superclasses): by the highest column of a head with one per (task, label), and by the sum over tasks
of the probabilities of a head with one per class. Every head has two maps of random features.
Seconds to minutes.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from record import write
from sklearn import datasets
from torch import Tensor, nn

import orderless as ol
from orderless.metrics import ece
from orderless_lab.scenarios import load_cifar100, load_mnist, load_mnist_5k

Row = dict[str, object]


class Data(NamedTuple):
    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    make_map: Callable[[], nn.Module]


def small(name: str, features: int) -> Data:
    """One of scikit-learn's data sets, standardised; two thirds of it are training data."""
    inputs, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    x = torch.tensor(inputs)
    x = ((x - x.mean(0)) / (x.std(0) + 1e-9)).float()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x = x[order]
    y = torch.tensor(labels)[order].long()
    cut = 2 * len(x) // 3

    def make_map() -> nn.Module:
        return ol.features.RandomReLU(x.shape[1], features)

    return Data(name, x[:cut], y[:cut], x[cut:], y[cut:], make_map)


def all_data(features: int, mnist: int) -> list[Data]:
    def digits() -> nn.Module:
        return ol.features.RandomReLU(784, features, bias_scale=0.0)

    def images() -> nn.Module:
        return ol.features.RandomConvolution(3, 32, features // 4, stride=2, mirror=False)

    sets = []
    for name, (training, test), count in (
        ("MNIST, embedded", load_mnist_5k(), 4000),
        ("MNIST, embedded", load_mnist_5k(), 500),
        ("MNIST", load_mnist(), mnist),
    ):
        x, y = training
        x_test, y_test = test
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count]
        x = x[rows].float().flatten(1) / 255
        x_test = x_test.float().flatten(1) / 255
        sets.append(Data(name, x, y[rows], x_test, y_test, digits))
    sets += [small(name, features // 2) for name in ("digits", "breast_cancer", "wine")]
    cifar = load_cifar100()
    x = cifar.x[:5000].float() / 255
    x_test = cifar.x_test[:1500].float() / 255
    for name, y, y_test in (
        ("CIFAR-100", cifar.fine, cifar.fine_test),
        ("CIFAR-100, superclasses", cifar.coarse, cifar.coarse_test),
    ):
        sets.append(Data(name, x, y[:5000], x_test, y_test[:1500], images))
    return sets


def calibration(data: Data) -> Row:
    head = ol.ExactHead(ol.Ensemble(data.make_map, 2, seed=0), classes=int(data.y.max()) + 1)
    head.update(data.x, data.y)
    answers = head.predict(data.x_test)
    right = (answers.argmax(1) == data.y_test).double().mean().item()
    error = ece(answers.numpy(), data.y_test.numpy())
    return {"data": data.name, "samples": len(data.x), "accuracy": 100 * right, "ece": float(error)}


def tasks(data: Data, size: int) -> Row:
    cut = 4 * len(data.x) // 5
    task = data.y // size
    label = data.y % size
    row: Row = {"data": data.name, "samples": cut, "classes_of_a_task": size}
    by_task = ol.ExactHead(ol.Ensemble(data.make_map, 2, seed=0))
    for number in task[:cut].unique().tolist():
        rows = (task[:cut] == number).nonzero()[:, 0]
        by_task.update(data.x[rows], label[rows], task=number)
    of_classes = ol.ExactHead(ol.Ensemble(data.make_map, 2, seed=0))
    of_classes.update(data.x[:cut], data.y[:cut])
    answers = {
        "max": by_task.predict(data.x[cut:]),
        "probs": of_classes.predict(data.x[cut:]).unflatten(1, (-1, size)).sum(1),
    }
    for across, answer in answers.items():
        row[across] = 100 * (answer.argmax(1) == label[cut:]).double().mean().item()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--mnist", type=int, default=60000)
    parser.add_argument("--only", choices=("calibration", "tasks"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sets = all_data(given.features, given.mnist)
    results: dict[str, list[Row]] = {}
    if given.only != "tasks":
        results["calibration"] = [calibration(data) for data in sets]
    if given.only != "calibration":
        fine, coarse = sets[-2:]
        pairs = torch.stack([coarse.y, fine.y], 1).unique(dim=0)  # a superclass's classes in a row
        ordered = fine._replace(name=coarse.name, y=pairs[:, 1].argsort()[fine.y])
        groups = ((sets[0], 2), (sets[1], 2), (fine, 5), (ordered, 5))
        results["tasks"] = [tasks(data, size) for data, size in groups]
    for rows in results.values():
        for row in rows:
            print(row)
    write(given.json, results)


if __name__ == "__main__":
    main()
