"""Does the order of the tasks matter? An audit of SGD on SplitMNIST's 5,000 embedded digits.

    python examples/audit_digits.py

or from the command line, with the same functions:

    orderless audit examples.audit_digits:make_learner --tasks examples.audit_digits:tasks
"""

import torch

import orderless as ol
from orderless_lab import suites


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 2))


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3)  # high: every task overwrites much of the one before


make_learner = ol.audit.from_torch(make_model, make_optimizer, batch_size=16)


class ExactLearner:
    """The exact head, for comparison: it adds sums, and no step can be overwritten by another."""

    def __init__(self, seed: int) -> None:  # the audit has seeded the random features
        self.head = ol.ExactHead(ol.features.RandomReLU(784, 1024), classes=2)

    def learn(self, x: torch.Tensor, y: torch.Tensor, task: int | None = None) -> None:
        self.head.update(x, y)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.head.predict(x)


def tasks() -> list[ol.Task]:
    """Five tasks, 0v1 to 8v9; one output for the even and one for the odd digit of a pair."""
    digits = suites.SplitMNIST(source="embedded", flatten=True)
    pairs = enumerate(digits.task_names)
    return [ol.Task(*digits.train_set(t), *digits.test_set(t), name) for t, name in pairs]


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for networks this small
    print(ol.order_sensitivity(make_learner, tasks(), name="sgd"), end="\n\n")
    print(ol.order_sensitivity(ExactLearner, tasks(), name="exact"))
