"""Does the order of the tasks matter? An audit of SGD on SplitMNIST's 5,000 embedded digits.

    python examples/audit_digits.py

or from the command line, with the same functions:

    orderless audit examples.audit_digits:make_learner --tasks examples.audit_digits:tasks
"""

import torch

import orderless as ol
from orderless_lab import scenarios


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 2))


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3)  # high: every task overwrites much of the one before


make_learner = ol.audit.from_torch(make_model, make_optimizer, batch_size=16)


def tasks() -> scenarios.Scenario:
    """Five tasks, 0v1 to 8v9; one output for the even and one for the odd digit of a pair."""
    return scenarios.SplitMNIST(source="embedded", flatten=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for networks this small
    result = ol.order_sensitivity(
        make_learner, tasks(), orders=10, seeds=3, compare=("wpf", "rb"), name="sgd"
    )
    print(result)
    print(f"\norder variance of rb: {result['rb'].order_variance}")
