"""Elastic weight consolidation with and without particles: five tasks, one after another.

    python examples/ewc_particles.py

SplitMNIST on the 5,000 embedded digits: 0v1, 2v3, ... 8v9 share two outputs, and the task is
unknown at test time. Adam at 1e-3, one pass. `forgot` is the mean loss of accuracy of the first
four tasks since they were learned. It prints

    one network            64.4% right, forgot 39.5 points
    one network, EWC       80.1% right, forgot  3.4 points
    ten particles          64.2% right, forgot 39.8 points
    ten particles, EWC     81.7% right, forgot  2.9 points

EWC prevents most of the forgetting. Particles add a little to EWC, and nothing alone. The strength
is the best of 0, 1e2, ... 1e5 for one network on held-out training data.
"""

import torch
import torch.nn.functional as F
from torch import nn

import orderless as ol
from orderless_lab import suites

loss = ol.per_particle(F.cross_entropy)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 2))


def train(tasks: suites.Scenario, n: int, strength: float) -> tuple[float, float]:
    """Average accuracy after the last task, and the mean accuracy lost since each was learned."""
    particles = ol.Ensemble(make_model, n, seed=0)
    optimizer = torch.optim.Adam(particles.parameters(), lr=1e-3)
    filter = ol.WeightedParticleFilter(particles, optimizer)
    ewc = ol.EWC(particles, strength, fisher_samples=200)
    filter.register(ewc)

    def accuracy(task: int) -> float:
        x, y = tasks.test_set(task)
        return float((filter.predict(x).argmax(1) == y).float().mean())

    learned = []
    for task in range(len(tasks)):
        for x, y in tasks.batches(task, batch_size=16, seed=0):
            filter.step(lambda x=x, y=y: loss(particles(x), y), penalty=ewc.penalty)
        ewc.end_task(tasks.train_set(task))
        learned.append(accuracy(task))
    final = [accuracy(task) for task in range(len(tasks))]
    lost = [before - after for before, after in zip(learned[:-1], final[:-1], strict=True)]
    return sum(final) / len(final), sum(lost) / len(lost)


def main() -> dict[str, tuple[float, float]]:
    tasks = suites.SplitMNIST(source="embedded", flatten=True)
    rows = {}
    for who, n in (("one network", 1), ("ten particles", 10)):
        for name, strength in ((who, 0.0), (f"{who}, EWC", 1e4)):
            average, lost = rows[name] = train(tasks, n, strength)
            print(f"{name:22s} {100 * average:.1f}% right, forgot {100 * lost:4.1f} points")
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for networks this small
    main()
