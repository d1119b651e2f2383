"""Tasks in an order: data sets, SplitMNIST, SplitCIFAR100, and scenarios of a user's own."""

from .datasets import DATASETS, check, fetch, find, load_cifar100, load_mnist, load_mnist_5k
from .errors import DataError
from .scenario import Scenario
from .splits import SplitCIFAR100, SplitMNIST
from .streams import orders
from .task import Task

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
