"""Rows that can be compared: the same knowledge of the tasks, and every row's own learning rate.

    python lab/studies/fair_rows.py heads [--data mnist] [--json FILE]
    python lab/studies/fair_rows.py networks [--scenario domain] [--json FILE]

heads: the exact head, domain-incremental, with a column for each label (it sees no task identity,
like a network with one output layer) beside a column for each task and label (it sees the task in
training; the highest column gives the label). MNIST: dead leaves; `cifar100`: EfficientNet-lite2
and random ReLUs, `--images` of each class. In two orders of the tasks.

networks: gradient descent, the product and joint training on SplitMNIST, one network 784-400-400,
one pass in batches of 128, inputs in [0, 1], the head starts at zero. Each row's loss (squared
error or cross-entropy; the product: squared error) and rate are chosen on the last tenth of the
training data in one order; the test accuracy is that of two seeds in three orders (joint training
has none). "held_out" has every rate, so rows can be compared at the same one as well.
About ten minutes on two idle cores for each scenario. Cells in the JSON are not computed again.
"""

import argparse
import itertools
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from order_free import load
from record import Cell, Cells, mnist, write
from torch import Tensor, nn

import orderless as ol
from orderless import metrics

RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
WAYS = {
    "gradient descent": ("squared", "cross-entropy"),
    "product": ("squared",),
    "joint": ("squared", "cross-entropy"),
}
BATCH = 128
Tasks = list[ol.Task]


def cifar(images: int) -> Tasks:
    """Lite2's features of SplitCIFAR100; the label is the place in the superclass."""
    train, test = load("cifar100", images)
    return [
        ol.Task(x, y % 5, x_test, y_test % 5, str(k))
        for k, ((x, y), (x_test, y_test)) in enumerate(zip(train, test, strict=True))
    ]


# ------------------------------------------------------------------------------------------- heads


def make_features(data: str, features: int, inputs: int) -> nn.Module:
    if data == "mnist":
        return ol.features.DeadLeaves(1, 28, features // 32, mirror=False, regions=4)
    return ol.features.RandomReLU(inputs, features, bias_scale=0.0, input_limit=8.0)


def head_row(data: str, tasks: Tasks, features: int, with_tasks: bool) -> Cell:
    inputs = tasks[0].x[0].numel()
    start = time.process_time()
    runs = []
    for order in (range(len(tasks)), reversed(range(len(tasks)))):
        maps = ol.Ensemble(lambda: make_features(data, features, inputs), 1, seed=0)
        head = ol.ExactHead(maps)
        for k in order:
            head.update(tasks[k].x, tasks[k].y, task=k if with_tasks else None)
        runs.append([head.predict(task.x_test) for task in tasks])
    right = [(p.argmax(1) == t.y_test).double().mean() for p, t in zip(runs[0], tasks, strict=True)]
    pairs = zip(*runs, strict=True)
    return {
        "columns": "task and label" if with_tasks else "label",
        "average": 100 * torch.stack(right).mean().item(),
        "equal_bits": all(torch.equal(a, b) for a, b in pairs),
        "samples": sum(len(task.y) for task in tasks),
        "features": features,
        "seconds": (time.process_time() - start) / 2,
    }


def heads(given: argparse.Namespace) -> None:
    tasks = mnist("domain", given.samples) if given.data == "mnist" else cifar(given.images)
    rows = [head_row(given.data, tasks, given.features, known) for known in (False, True)]
    for row in rows:
        print(row)
    write(given.json, {"data": given.data, "rows": rows})


# ---------------------------------------------------------------------------------------- networks


def network(outputs: int) -> nn.Module:
    head = nn.Linear(400, outputs)  # drawn first
    hidden = nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *hidden, head)


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    target = F.one_hot(y, outputs.shape[-1]).to(outputs)
    return 0.5 * (outputs - target).square().sum(-1).mean()


LOSSES = {"squared": squared_error, "cross-entropy": F.cross_entropy}


def batches(task: ol.Task, seed: int) -> list[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(task.y), generator=torch.Generator().manual_seed(seed))
    return [(task.x[rows], task.y[rows]) for rows in order.split(BATCH)]


def together(tasks: Tasks) -> ol.Task:
    parts = zip(*((t.x, t.y, t.x_test, t.y_test) for t in tasks), strict=True)
    return ol.Task(*(torch.cat(part) for part in parts), name="all")


def trained(
    way: str, loss_name: str, lr: float, tasks: Tasks, order: list[int], seed: int
) -> ol.PosteriorProduct | ol.GradientDescent:
    outputs = 1 + max(int(task.y.max()) for task in tasks)
    particles = ol.Ensemble(partial(network, outputs), 1, seed=seed)
    with torch.no_grad():
        for parameter in list(particles.parameters())[-2:]:
            parameter.zero_()
    loss = ol.per_particle(LOSSES[loss_name])
    if way == "product":
        learner = ol.PosteriorProduct(particles, lambda p: torch.optim.SGD(p, lr=lr))
    else:
        learner = ol.GradientDescent(particles, torch.optim.SGD(particles.parameters(), lr=lr))
    sequence = [together(tasks)] if way == "joint" else [tasks[k] for k in order]
    for task in sequence:
        for x, y in batches(task, seed):
            learner.step(lambda x=x, y=y: loss(particles(x), y))
        if way == "product":
            learner.end_task((task.x, task.y))
    return learner


def accuracies(learner: ol.PosteriorProduct | ol.GradientDescent, tasks: Tasks) -> list[float]:
    right = [learner.predict(task.x_test).argmax(1) == task.y_test for task in tasks]
    return [100 * r.double().mean().item() for r in right]


def held_out(task: ol.Task) -> ol.Task:
    """The last tenth of the training data is the test data."""
    cut = len(task.y) * 9 // 10
    return ol.Task(task.x[:cut], task.y[:cut], task.x[cut:], task.y[cut:], task.name)


def networks(given: argparse.Namespace) -> None:
    tasks = mnist(given.scenario, given.samples)
    cells = Cells(given.json)

    def cell(part: str, way: str, loss: str, lr: float, order: list[int], seed: int) -> Cell:
        scored = [held_out(task) for task in tasks] if part == "held out" else tasks

        def compute() -> Cell:
            try:
                scores = accuracies(trained(way, loss, lr, scored, order, seed), scored)
            except FloatingPointError:  # the rate is too large
                scores = [0.0] * len(tasks)
            return {"scores": scores, "average": sum(scores) / len(scores)}

        key = {"part": part, "way": way, "loss": loss, "lr": lr, "order": order, "seed": seed}
        return cells.get(key, compute)

    straight = list(range(5))
    tested = [straight, straight[::-1], [2, 0, 4, 1, 3]]
    rows = []
    for way, losses in WAYS.items():
        tried = [
            cell("held out", way, loss, lr, straight, 0)
            for loss, lr in itertools.product(losses, RATES)
        ]
        best = max(tried, key=lambda c: c["average"])
        chosen = "test", way, best["loss"], best["lr"]
        taken = [straight] if way == "joint" else tested
        runs = [[cell(*chosen, order, seed)["scores"] for order in taken] for seed in range(2)]
        rows.append(
            {
                "way": way,
                "loss": best["loss"],
                "lr": best["lr"],
                "average": metrics.average(runs),
                "order_deviation": metrics.order_variance(runs) ** 0.5,
                "held_out": [{k: c[k] for k in ("loss", "lr", "average")} for c in tried],
            }
        )
    for row in rows:
        print(row)
    write(given.json, {"scenario": given.scenario, "rows": rows, "cells": cells.rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("heads", "networks"))
    parser.add_argument("--data", choices=("mnist", "cifar100"), default="mnist")
    parser.add_argument("--scenario", choices=("domain", "class"), default="domain")
    parser.add_argument("--samples", type=int, help="of MNIST; default: all")
    parser.add_argument("--images", type=int, default=50, help="of each class of CIFAR-100")
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.part == "heads":
        heads(given)
    else:
        networks(given)


if __name__ == "__main__":
    main()
