"""Learning anew from a kept sample: accuracy against the share of the data that is kept.

    python lab/studies/kept.py [--samples N] [--seeds 2] [--json FILE]

SplitMNIST, class-incremental, an MLP 784-400-400-10, inputs in [0, 1], SGD at 0.1 on cross-entropy
in batches of 128. `ol.KeptSample` keeps a share of the stream by the samples' hashes; one network
is trained on what is kept, in the order of the hashes, with as many steps as one pass over all
data. Beside it, experience replay with a reservoir of the same size (every batch of the stream with
as many replayed samples, in the same number of steps), and the exact head on 2,048 dead-leaves
features, which keeps sums and one sample in 16. Every method in three orders of the tasks; the
product's and joint training's rows are in fair_rows.py. About ten minutes on two idle cores. Cells
in the JSON are not computed again.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from record import Cell, Cells, grid, write
from torch import Tensor

import orderless as ol
from orderless import metrics
from orderless_lab.suites import SplitMNIST
from orderless_lab.suites.supervised import mlp

SHARES = {"1/64": 1 / 64, "1/32": 1 / 32, "1/16": 1 / 16, "1/8": 1 / 8, "1/4": 1 / 4}
ORDERS = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]]
BATCH = 128
RATE = 0.1
Stream = list[tuple[Tensor, Tensor]]


def stream(tasks: list[ol.Task], order: list[int], seed: int) -> Stream:
    """The tasks' batches; a task's batches do not depend on its place."""
    batches = []
    for k in order:
        generator = torch.Generator().manual_seed(1000 * seed + k)
        for rows in torch.randperm(len(tasks[k].y), generator=generator).split(BATCH):
            batches.append((tasks[k].x[rows], tasks[k].y[rows]))
    return batches


def unit(x: Tensor) -> Tensor:
    """Images, which a kept sample knows by their bytes, as float32 in [0, 1]."""
    return x.float() / 255


class Network:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = mlp(784, 400, 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.predict(unit(x)), y).backward()
        self.optimizer.step()

    def predict(self, x: Tensor) -> Tensor:
        return self.model(x)


class Reservoir:
    """Vitter's reservoir: every sample of the stream is in it with equal probability."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity = capacity
        self.generator = torch.Generator().manual_seed(seed)
        self.samples: Stream = []
        self.count = 0

    def add(self, x: Tensor, y: Tensor) -> None:
        for sample in zip(x, y, strict=True):
            self.count += 1
            if len(self.samples) < self.capacity:
                self.samples.append(sample)
                continue
            place = int(torch.randint(self.count, (), generator=self.generator))
            if place < self.capacity:
                self.samples[place] = sample

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        places = torch.randint(len(self.samples), (count,), generator=self.generator)
        x, y = zip(*(self.samples[place] for place in places.tolist()), strict=True)
        return torch.stack(x), torch.stack(y)


def with_kept_sample(batches: Stream, share: float, seed: int) -> tuple[Network, int]:
    kept = ol.KeptSample(share)
    for x, y in batches:
        kept.add(x, y)
    x, y = kept.samples()
    network = Network(seed)
    generator = torch.Generator().manual_seed(seed)
    places = torch.empty(0, dtype=torch.long)
    for _ in batches:
        if len(places) < BATCH:
            places = torch.cat([places, torch.randperm(len(y), generator=generator)])
        network.step(x[places[:BATCH]], y[places[:BATCH]])
        places = places[BATCH:]
    return network, len(kept)


def with_replay(batches: Stream, share: float, seed: int) -> tuple[Network, int]:
    total = sum(len(y) for _, y in batches)
    store = Reservoir(round(share * total), seed)
    network = Network(seed)
    for x, y in batches:
        if store.samples:
            x_old, y_old = store.draw(len(y))
            network.step(torch.cat([x, x_old]), torch.cat([y, y_old]))
        else:
            network.step(x, y)
        store.add(x, y)
    return network, len(store.samples)


def with_exact_head(batches: Stream, seed: int) -> tuple[ol.ExactHead, int]:
    leaves = partial(ol.features.DeadLeaves, 1, 28, 64, mirror=False, regions=4)
    head = ol.ExactHead(ol.Ensemble(leaves, 1, seed=seed), classes=10)
    for k in range(0, len(batches), 8):
        x, y = (torch.cat(parts) for parts in zip(*batches[k : k + 8], strict=True))
        head.update(unit(x), y)
    return head, sum(len(y) for _, y in batches) // 16


def run(method: str, share: str, tasks: list[ol.Task], order: list[int], seed: int) -> Cell:
    start = time.process_time()
    batches = stream(tasks, order, seed)
    if method == "exact head":
        learner, kept = with_exact_head(batches, seed)
    elif method == "kept sample":
        learner, kept = with_kept_sample(batches, SHARES[share], seed)
    else:
        learner, kept = with_replay(batches, SHARES[share], seed)
    with torch.no_grad():
        outputs = [learner.predict(unit(task.x_test)) for task in tasks]
    right = [
        (o.argmax(1) == task.y_test).double().mean().item()
        for o, task in zip(outputs, tasks, strict=True)
    ]
    return {
        "kept": kept,
        "scores": right,
        "digest": ol.io.digest(outputs),
        "seconds": time.process_time() - start,
    }


def means(cells: list[Cell]) -> list[Cell]:
    rows = []
    for method, share in dict.fromkeys((c["method"], c["share"]) for c in cells):
        members = [c for c in cells if (c["method"], c["share"]) == (method, share)]
        scores = grid(members, "scores")
        digests = grid(members, "digest")
        rows.append(
            {
                "method": method,
                "share": share,
                "kept": members[0]["kept"],
                "average": 100 * metrics.average(scores),
                "order_deviation": 100 * metrics.order_variance(scores) ** 0.5,
                "equal_bits": bool((digests == digests[:, :1]).all()),
                "runs": len(members),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, help="of MNIST; default: all")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tasks = []
    for k, task in enumerate(SplitMNIST("domain").tasks):
        count = len(task.y) if given.samples is None else given.samples // 5
        y, y_test = task.y[:count] + 2 * k, task.y_test + 2 * k
        tasks.append(ol.Task(task.x[:count], y, task.x_test, y_test, task.name))
    cells = Cells(given.json)
    todo = [(method, share) for share in SHARES for method in ("kept sample", "experience replay")]
    todo.append(("exact head", "sums"))
    for seed in range(given.seeds):
        for method, share in todo:
            for order in ORDERS:
                key = {"method": method, "share": share, "seed": seed, "order": order}
                cells.get(key, partial(run, method, share, tasks, order, seed))
    rows = means(cells.rows)
    write(given.json, {"rows": rows, "cells": cells.rows})
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
