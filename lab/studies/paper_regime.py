"""Table 1 of the paper in the regime where it holds: small steps, fresh networks, its own scoring.

    python lab/studies/paper_regime.py [--lr 1e-4] [--seeds 8] [--orders 2] [--json FILE]

SplitMNIST, domain-incremental, one pass, SGD, 100 networks of 784-400-400-2. The released code
scores the weighted filter by its weighted logits, averaging by the mean accuracy of the particles,
and gradient descent by one particle. Weights do not move particles, so one run gives all rows:
averaging is the same particles with equal weights, gradient descent is particle 0.

Prints accuracy and variance over runs, and the variance over orders, of each row and scoring.
`--held-out` scores on a tenth of the training data, to choose settings. Cells that are already in
the JSON are not computed again.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from record import Cell, Cells, mnist, orders, write
from torch import Tensor

import orderless as ol
from orderless_lab.suites.supervised import mlp

PAPER = {"weighted": (72.0, 0.002), "averaging": (53.4, 0.012), "gradient descent": (48.7, 0.032)}
AS_THE_CODE = {
    "weighted": "weighted logits",
    "averaging": "mean accuracy",
    "gradient descent": "one particle",
}
SCORINGS = (
    "weighted logits", "averaged logits", "weighted accuracy", "mean accuracy", "one particle"
)  # fmt: skip


def initial(init: str) -> str | ol.Perturb:
    if init == "fresh":
        return "fresh"
    return ol.Perturb(base="one" if init == "perturb" else "fresh")


def scores(weights: Tensor, outputs: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy of outputs `[N, B, C]` by every scoring."""
    own = (outputs.argmax(-1) == y).double().mean(1)
    mixed = torch.einsum("n,nbc->bc", weights.float(), outputs)
    averaged = outputs.mean(0)
    return {
        "weighted logits": (mixed.argmax(-1) == y).double().mean().item(),
        "averaged logits": (averaged.argmax(-1) == y).double().mean().item(),
        "weighted accuracy": (weights @ own).item(),
        "mean accuracy": own.mean().item(),
        "one particle": own[0].item(),
    }


def run(tasks: list[ol.Task], order: list[int], seed: int, given: argparse.Namespace) -> Cell:
    """Train on the tasks in this order: the scores of every task, by scoring."""
    start = time.perf_counter()
    init = initial(given.init)
    network = partial(mlp, 784, 400, 2)
    particles = ol.Ensemble(network, given.particles, init, seed=seed, device=given.device)
    optimizer = torch.optim.SGD(particles.parameters(), lr=given.lr)
    pf = ol.WeightedParticleFilter(particles, optimizer)
    loss = ol.per_particle(F.cross_entropy)
    for index in order:
        task = tasks[index]
        generator = torch.Generator().manual_seed(1000 * seed + index)
        for rows in torch.randperm(len(task.y), generator=generator).split(given.batch):
            x = task.x[rows]
            y = task.y[rows]
            pf.step(lambda x=x, y=y: loss(particles(x), y))
    each = [scores(pf.weights, pf.outputs(task.x_test), task.y_test) for task in tasks]
    return {
        **{name: [score[name] for score in each] for name in SCORINGS},
        "ess": pf.ess.item(),
        "seconds": time.perf_counter() - start,
    }


def summary(cells: list[Cell]) -> dict[str, dict[str, float | None]]:
    """Average accuracy in % and variances over runs and over orders, by scoring."""
    seeds = torch.tensor([cell["seed"] for cell in cells])
    table = {}
    for name in SCORINGS:
        runs = torch.tensor([cell[name] for cell in cells]).double()  # [runs, tasks]
        normalized = runs.var(0, correction=0) / runs.mean(0).square()
        of_seeds = [runs[seeds == seed] for seed in seeds.unique()]
        of_orders = [scores.var(0, correction=0).mean() for scores in of_seeds if len(scores) > 1]
        table[name] = {
            "average": 100 * runs.mean().item(),
            "normalized_variance_over_runs": normalized.mean().item(),
            "order_variance": torch.stack(of_orders).mean().item() if of_orders else None,
            "runs": len(runs),
            "seeds": len(of_seeds),
        }
    return table


def show(table: dict[str, dict[str, float | None]]) -> None:
    print("| row | paper | normalized variance | here | normalized variance | order variance |")
    print("|:--|--:|--:|--:|--:|--:|")
    for row, name in AS_THE_CODE.items():
        accuracy, variance = PAPER[row]
        here = table[name]
        print(
            f"| {row}, {name} | {accuracy} | {variance} | {here['average']:.1f} "
            f"| {here['normalized_variance_over_runs']:.2g} | {here['order_variance']} |"
        )
    print("\nscored alike:", {name: round(row["average"], 1) for name, row in table.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--particles", type=int, default=100)
    parser.add_argument("--init", choices=("fresh", "perturb", "fresh+noise"), default="fresh")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--orders", type=int, default=2)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    split = mnist("domain", validation=0.1 if given.held_out else 0.0)
    tasks = [task.to(given.device) for task in split]
    cells = Cells(given.json, device=given.device)
    for order in orders(given.orders, len(tasks)):
        for seed in range(given.seeds):
            cells.get({"seed": seed, "order": order}, partial(run, tasks, order, seed, given))
    table = summary(cells.rows)
    write(given.json, {"rows": table, "cells": cells.rows}, given.device)
    show(table)


if __name__ == "__main__":
    main()
