"""Learners whose dependence on order and seed is known, and tasks for them."""

from __future__ import annotations

import torch

import orderless as ol


def toy_tasks(count: int = 4, size: int = 24, seed: int = 0) -> list[ol.Task]:
    """Two classes told apart by another direction in each task: learning one undoes another."""
    generator = torch.Generator().manual_seed(seed)
    tasks = []
    for t in range(count):
        angle = torch.tensor(2.0 * t)
        direction = torch.stack([angle.cos(), angle.sin()])
        x = torch.randn(2 * size, 2, generator=generator)
        y = (x @ direction > 0).long()
        tasks.append(ol.Task(x[:size], y[:size], x[size:], y[size:], name=f"day {t}"))
    return tasks


def make_sgd(seed: int, lr: float = 1.0):
    """A linear classifier that learns fast and forgets fast."""
    make = ol.audit.from_torch(
        lambda: torch.nn.Linear(2, 2), lambda p: torch.optim.SGD(p, lr=lr), batch_size=4, epochs=3
    )
    return make(seed)


class LastTask:
    """Deterministic: predicts by the class means of the task it saw last. Ignores its seed."""

    def __init__(self, seed: int) -> None:
        self.means = torch.zeros(2, 2)

    def learn(self, x, y, task=None):
        self.means = torch.stack([x[y == c].mean(0) for c in (0, 1)])

    def predict(self, x):
        return -torch.cdist(x, self.means)


class Sums(LastTask):
    """The same over all tasks, by whole-numbered sums: no order can change a bit."""

    def __init__(self, seed: int) -> None:
        self.sums = torch.zeros(2, 2, dtype=torch.int64)

    def learn(self, x, y, task=None):
        for c in (0, 1):
            self.sums[c] += (x[y == c] * 1024).round().long().sum(0)

    def predict(self, x):
        return x.double() @ self.sums.double().T


class Stopping:
    """Makes learners, and is interrupted (Ctrl-C) when it should make one more than `limit`."""

    def __init__(self, limit: int = 10**6, stop: type[BaseException] = KeyboardInterrupt) -> None:
        self.made = 0
        self.limit = limit
        self.stop = stop

    def __call__(self, seed: int) -> LastTask:
        if self.made == self.limit:
            raise self.stop
        self.made += 1
        return LastTask(seed)


tasks = toy_tasks
few = toy_tasks(2)
numbers = [1, 2, 3]
stops = Stopping()


class Mute:
    def __init__(self, seed: int) -> None:
        pass


class Stumbling(LastTask):
    def learn(self, x, y, task=None):
        raise RuntimeError("no luck")
