"""When does weighting help? Learning rate by initialisation on SplitMNIST, domain.

    python lab/studies/when_weighting_helps.py [--particles 20] [--seeds 2] [--orders 5]
        [--json FILE]

The 5,000 embedded digits, one pass, batches of 8, MLP 784-100-100-2, SGD. Weights never move a
particle, so one training run has all readings: its log-weights times `scale`, where 0 is averaging
(and gradient descent, the mean of its networks) and 1 is the weighted filter.

For every place: how far the networks moved, the effective sample size at the end, the weighted mean
accuracy of the networks (`accuracy`) and the accuracy of the weighted mean prediction (`probs`),
with their variances over orders and seeds, and their gain over averaging with a paired 95 %
interval. Cells that are in the JSON already are not computed again.
"""

import argparse
import itertools
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from record import Cell, Cells, grid, orders, write

import orderless as ol
from orderless import metrics
from orderless_lab.suites import SplitMNIST
from orderless_lab.suites.supervised import mlp

INITS = {"fresh": "fresh", "perturb": ol.Perturb(0.001, 0.04, base="one")}
RATES = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 1e-1)
SCALES = (0.0, 0.1, 1.0, 8.0)
SCORES = ("accuracy", "probs")


def scored(log_weights: torch.Tensor, scale: float, outputs: list, tasks: SplitMNIST) -> dict:
    """Scores of every task by these weights."""
    weights = (scale * log_weights).softmax(0)
    rows: dict[str, list[float]] = {name: [] for name in SCORES}
    for task, logits in enumerate(outputs):
        _, y = tasks.test_set(task)
        own = (logits.argmax(-1) == y).double().mean(1)
        mixed = torch.einsum("n,nbc->bc", weights.float(), logits.softmax(-1))
        rows["accuracy"].append((weights @ own).item())
        rows["probs"].append((mixed.argmax(-1) == y).double().mean().item())
    return {"ess": (1 / weights.square().sum()).item(), **rows}


def run(tasks: SplitMNIST, order: list[int], cell: Cell, n: int) -> Cell:
    """Train once; what every scale reads from it."""
    particles = ol.Ensemble(partial(mlp, 784, 100, 2), n, INITS[cell["init"]], seed=cell["seed"])
    start = [parameter.detach().clone() for parameter in particles.parameters()]
    optimizer = torch.optim.SGD(particles.parameters(), lr=cell["rate"])
    pf = ol.WeightedParticleFilter(particles, optimizer)
    loss = ol.per_particle(F.cross_entropy)
    for task in order:
        for x, y in tasks.batches(task, batch_size=8, epochs=1, seed=cell["seed"]):
            pf.step(lambda x=x, y=y: loss(particles(x), y))
    pairs = list(zip(particles.parameters(), start, strict=True))
    moved = sum((p.detach() - s).flatten(1).square().sum(1) for p, s in pairs)
    before = sum(s.flatten(1).square().sum(1) for s in start)
    outputs = [pf.outputs(tasks.test_set(task)[0]) for task in range(len(tasks))]
    return {
        "moved": (moved / before).sqrt().mean().item(),
        "read": {str(scale): scored(pf.log_weights, scale, outputs, tasks) for scale in SCALES},
    }


def point(cells: list[Cell], scale: float) -> Cell:
    """One place of the map, over its seeds and orders."""
    read = [{**cell["read"][str(scale)], "seed": cell["seed"]} for cell in cells]
    averaging = [{**cell["read"]["0.0"], "seed": cell["seed"]} for cell in cells]
    row: Cell = {
        "init": cells[0]["init"],
        "rate": cells[0]["rate"],
        "scale": scale,
        "moved": float(np.mean([cell["moved"] for cell in cells])),
        "ess": float(np.mean([each["ess"] for each in read])),
    }
    for name in SCORES:
        scores = grid(read, name)
        gain = metrics.paired_difference(scores, grid(averaging, name))
        row[name] = {
            "average": metrics.average(scores),
            "order_variance": metrics.order_variance(scores),
            "seed_variance": metrics.seed_variance(scores),
            "gain": [gain.value, gain.low, gain.high],
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--particles", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tasks = SplitMNIST("domain", source="embedded", flatten=True)
    cells = Cells(given.json)
    places = list(itertools.product(INITS, given.rates))
    for seed in range(given.seeds):
        for number, order in enumerate(orders(given.orders, len(tasks))):
            for init, rate in places:
                cell = {"init": init, "rate": rate, "seed": seed, "order": number}
                cells.get(cell, partial(run, tasks, order, cell, given.particles))
    points = []
    for init, rate in places:
        own = [cell for cell in cells.rows if (cell["init"], cell["rate"]) == (init, rate)]
        points += [point(own, scale) for scale in SCALES]
    write(given.json, {"particles": given.particles, "points": points, "cells": cells.rows})
    for row in points:
        gain, low, high = (100 * number for number in row["accuracy"]["gain"])
        print(
            f"{row['init']:8} {row['rate']:<7g} scale {row['scale']:<4g} moved {row['moved']:.2g} "
            f"ESS {row['ess']:.1f} accuracy {100 * row['accuracy']['average']:.1f} "
            f"gain {gain:+.1f} ({low:+.1f} to {high:+.1f})"
        )


if __name__ == "__main__":
    main()
