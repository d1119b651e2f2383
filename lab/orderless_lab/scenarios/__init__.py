"""Sequences of tasks: SplitMNIST, SplitCIFAR100, intents, and scenarios of a user's own."""

from typing import TYPE_CHECKING

from ..lazy import on_first_use

if TYPE_CHECKING:
    from orderless.errors import DataError
    from orderless.tasks import Task

    from .catalogue import DATASETS
    from .datasets import check, fetch, find, load_cifar100, load_intents, load_mnist, load_mnist_5k
    from .intents import Intents
    from .scenario import Scenario
    from .splits import SplitCIFAR100, SplitMNIST
    from .streams import orders

__all__ = [
    "DATASETS", "DataError", "Intents", "Scenario", "SplitCIFAR100", "SplitMNIST", "Task", "check",
    "fetch", "find", "load_cifar100", "load_intents", "load_mnist", "load_mnist_5k", "orders",
]  # fmt: skip

__getattr__, __dir__ = on_first_use(__name__)
