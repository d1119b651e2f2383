"""The law of order variance: how it falls with the learning rate.

    python lab/studies/slopes.py [--json FILE] [--figure FILE]

From one warm state (networks and optimizer), 20 batches are learned in random orders at rates from
1e-6 to 1: what is the variance over the orders of the weights, of the predictions and of the
filter's log-weights? Two neighbouring batches, exchanged, differ by O(lr^2) in the result of plain
gradient steps, so the variance falls as lr^4: halve the rate, and it falls 16-fold. Momentum and
adaptive steps (AdamW, RMSprop) depend on the order at first order, so it falls as lr^2.

The law is about a fixed number of steps. A second measurement keeps lr x steps the same instead:
20 batches that are shuffled in every pass (slope 3), and four blocks of batches, as tasks are, in
all 24 orders (slope 0: no rate helps).

Data: scikit-learn's digits and breast cancer, standardised; networks with 32 tanh units (or ReLU,
whose kinks break the law), float64.
"""

import argparse
import copy
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from record import write
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import scale
from torch import Tensor, nn

import orderless as ol
from orderless_lab.report.figures import new_figure

Batches = list[tuple[Tensor, Tensor]]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

LOADERS = {"digits": load_digits, "breast cancer": load_breast_cancer}
OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
}
RATES = [1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0]
FITTED = 4  # the slope is fitted at this many rates, the smallest
BATCHES = 20
BATCH = 16

FILTERS = {
    "gradient descent": (ol.GradientDescent, 1),
    "averaging": (ol.AveragingParticles, 10),
    "weighted filter": (ol.WeightedParticleFilter, 10),
    "LwF": (ol.GradientDescent, 1),
}


def load(name: str) -> tuple[Tensor, Tensor]:
    x, y = LOADERS[name](return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return torch.tensor(scale(x))[order], torch.tensor(y)[order]


def network(inputs: int, classes: int, activation: type[nn.Module]) -> nn.Module:
    layers = nn.Linear(inputs, 32), activation(), nn.Linear(32, classes)
    return nn.Sequential(*layers).double()


class Learner:
    """A filter with its optimizer that can return to its warm state."""

    def __init__(
        self, method: str, optimizer: str, x: Tensor, y: Tensor, activation: type[nn.Module]
    ) -> None:
        make_filter, n = FILTERS[method]
        classes = int(y.max()) + 1
        particles = ol.Ensemble(lambda: network(x.shape[1], classes, activation), n, seed=0)
        self.filter = make_filter(particles, OPTIMIZERS[optimizer](particles.parameters()))
        self.loss = ol.per_particle(F.cross_entropy)
        self.teacher: ol.Ensemble | None = None
        for rows in torch.randperm(len(y), generator=torch.Generator().manual_seed(1)).split(BATCH):
            self.step(x[rows], y[rows])
        if method == "LwF":
            self.teacher = copy.deepcopy(particles).requires_grad_(False)
        self.warm = self.filter.state_dict()

    def step(self, x: Tensor, y: Tensor) -> None:
        self.filter.step(lambda: self.loss_of(x, y))

    def loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy; with a teacher, LwF's distillation at temperature 2 besides."""
        outputs = self.filter.particles(x)
        loss = self.loss(outputs, y)
        if self.teacher is None:
            return loss
        target = (self.teacher(x) / 2).softmax(-1)
        return loss - (target * (outputs / 2).log_softmax(-1)).sum(-1).mean(1)

    def learn(self, batches: Batches, lr: float) -> None:
        """Learn the batches from the warm state."""
        self.filter.load_state_dict(self.warm)
        for group in self.filter.optimizer.param_groups:
            group["lr"] = lr
        for x, y in batches:
            self.step(x, y)

    def measures(self, x: Tensor) -> dict[str, Tensor]:
        """What can depend on the order."""
        weights = [p.detach().flatten() for p in self.filter.particles.parameters()]
        return {
            "weights": torch.cat(weights),
            "predictions": self.filter.predict(x).flatten(),
            "log-weights": self.filter.log_weights,
        }


def variances(learner: Learner, sequences: list[Batches], lr: float, x: Tensor) -> dict[str, float]:
    """The variance over the sequences, averaged over coordinates."""
    results = []
    for batches in sequences:
        learner.learn(batches, lr)
        results.append({name: v.clone() for name, v in learner.measures(x).items()})
    return {
        name: torch.stack([r[name] for r in results]).var(0).mean().item() for name in results[0]
    }


def in_batches(x: Tensor, y: Tensor) -> Batches:
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def slope(rates: list[float], values: list[float]) -> float | None:
    """Of the logarithms, by least squares; None where nothing varies."""
    if min(values) <= 0.0:
        return None
    return float(np.polyfit(np.log(rates), np.log(values), 1)[0])


def shuffled(batches: Batches, count: int, passes: int = 1) -> list[Batches]:
    """Sequences of several passes, each in a random order of its own."""
    generator = torch.Generator().manual_seed(2)

    def one_pass() -> Batches:
        return [batches[i] for i in torch.randperm(len(batches), generator=generator)]

    return [[b for _ in range(passes) for b in one_pass()] for _ in range(count)]


def blocks(batches: Batches, passes: int) -> list[Batches]:
    """Four blocks of sorted batches in all 24 orders; a block is repeated before the next."""
    size = len(batches) // 4
    parts = [batches[k * size : (k + 1) * size] * passes for k in range(4)]
    return [[b for k in order for b in parts[k]] for order in itertools.permutations(range(4))]


def law(data: str, method: str, optimizer: str, activation: type[nn.Module], count: int) -> dict:
    """The variances at every rate, and their slopes at the smallest."""
    x, y = load(data)
    learner = Learner(method, optimizer, x, y, activation)
    batches = in_batches(x, y)[:BATCHES]
    sequences = shuffled(batches, count)
    table = [variances(learner, sequences, lr, x[:200]) for lr in RATES]
    values = {name: [row[name] for row in table] for name in table[0]}
    return {
        "data": data,
        "method": method,
        "optimizer": optimizer,
        "activation": activation.__name__,
        "slopes": {name: slope(RATES[:FITTED], v[:FITTED]) for name, v in values.items()},
        "local_slopes": {
            name: [slope(RATES[k : k + 2], v[k : k + 2]) for k in range(len(RATES) - 1)]
            for name, v in values.items()
        },
        "variances": values,
    }


def same_distance(data: str, count: int) -> dict:
    """Plain gradient descent with lr x steps the same at every rate."""
    x, y = load(data)
    learner = Learner("gradient descent", "SGD", x, y, nn.Tanh)
    used = BATCHES * BATCH
    by_class = torch.argsort(y[:used], stable=True)
    batches = in_batches(x[:used], y[:used])
    by_label = in_batches(x[by_class], y[by_class])
    rates = [2.0**-k / 10 for k in range(6)]
    row = {"data": data, "rates": rates, "passes": [2**k for k in range(6)]}
    kinds = {
        "shuffled in every pass": lambda passes: shuffled(batches, count, passes),
        "blocks of sorted batches": lambda passes: blocks(by_label, passes),
    }
    for name, make in kinds.items():
        values = [
            variances(learner, make(passes), lr, x[:200])["weights"]
            for lr, passes in zip(rates, row["passes"], strict=True)
        ]
        row[name] = {"variances": values, "slope": slope(rates[-3:], values[-3:])}
    return row


def draw(rows: list[dict], path: Path) -> None:
    """Variance of the weights against the rate, by optimizer, for each data set."""
    figure = new_figure(9, 3.6)
    axes = figure.subplots(1, len(LOADERS), sharey=True)
    for axis, data in zip(axes, LOADERS, strict=True):
        for row in rows:
            if row["data"] != data or row["method"] != "gradient descent":
                continue
            label = f"{row['optimizer']}: slope {row['slopes']['weights']:.2f}"
            style = "-"
            if row["activation"] == "ReLU":
                label = "SGD, ReLU network"
                style = "--"
            axis.loglog(RATES, row["variances"]["weights"], style, marker="o", ms=3, label=label)
        axis.set_title(data)
        axis.set_xlabel("learning rate")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("order variance of the weights")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=16)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    rows = []
    for data in LOADERS:
        cases = [("gradient descent", name, nn.Tanh) for name in OPTIMIZERS]
        cases += [(method, "SGD", nn.Tanh) for method in FILTERS if method != "gradient descent"]
        cases += [("gradient descent", "SGD", nn.ReLU)]
        for method, optimizer, activation in cases:
            rows.append(law(data, method, optimizer, activation, given.orders))
            row = rows[-1]
            print(data, method, optimizer, row["activation"], row["slopes"], flush=True)
    distances = [same_distance(data, given.orders) for data in LOADERS]
    for row in distances:
        print(row, flush=True)
    write(given.json, {"rates": RATES, "rows": rows, "same_distance": distances})
    if given.figure:
        draw(rows, given.figure)


if __name__ == "__main__":
    main()
