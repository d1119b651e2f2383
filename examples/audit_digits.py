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

# the exact head, for comparison: a map of random features, and no step that could be overwritten
exact = ol.audit.from_partial_fit(
    lambda seed: ol.ExactClassifier(
        n_features=1024, input_mean=0.13, input_scale=0.31, random_state=seed
    ),
    classes=2,
)


def tasks() -> list[ol.Task]:
    """Five tasks, 0v1 to 8v9; one output for the even and one for the odd digit of a pair."""
    digits = scenarios.SplitMNIST(source="embedded", flatten=True)
    pairs = enumerate(digits.task_names)
    return [ol.Task(*digits.train_set(t), *digits.test_set(t), name) for t, name in pairs]


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for networks this small
    result = ol.order_sensitivity(make_learner, tasks(), compare={"exact": exact}, name="sgd")
    print(result)
    print(f"\norder variance of the exact head: {result['exact'].order_variance}")
