"""Tasks in an order: data sets, SplitMNIST, SplitCIFAR100, and scenarios of a user's own."""

from orderless.scenarios.datasets import (
    DATASETS,
    check,
    fetch,
    find,
    load_cifar100,
    load_mnist,
    load_mnist_5k,
)
from orderless.scenarios.errors import DataError
from orderless.scenarios.scenario import Scenario
from orderless.scenarios.splits import SplitCIFAR100, SplitMNIST
from orderless.scenarios.streams import orders
from orderless.scenarios.task import Task

__all__ = [
    "DATASETS",
    "DataError",
    "Scenario",
    "SplitCIFAR100",
    "SplitMNIST",
    "Task",
    "check",
    "fetch",
    "find",
    "load_cifar100",
    "load_mnist",
    "load_mnist_5k",
    "orders",
]
