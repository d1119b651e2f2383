"""The benchmarks: one object per suite, which makes its tasks and networks and says how to score.

To add a suite to the lab, name it in `BENCHMARKS`; in a module of your own, register an object:
`register(MySuite("mine", "My tasks", "what they are"))`.
"""

from typing import TYPE_CHECKING

from ..lazy import on_first_use

if TYPE_CHECKING:
    from orderless.tasks import Task

    from .base import Outline, Preset, Suite
    from .intents import Intents
    from .registry import SUITES, find_suite, register
    from .scenario import Scenario
    from .splitcifar100 import SplitCIFAR100
    from .splitmnist import SplitMNIST
    from .streams import orders
    from .supervised import SupervisedSettings, SupervisedSuite

__all__ = [
    "BENCHMARKS", "SUITES", "Intents", "Outline", "Preset", "Scenario", "SplitCIFAR100",
    "SplitMNIST", "Suite", "SupervisedSettings", "SupervisedSuite", "Task", "find_suite", "orders",
    "register",
]  # fmt: skip

# name -> its module and the object in it; the help of commands needs the names without torch
BENCHMARKS = {
    "splitmnist": ("splitmnist", "SPLIT_MNIST"),
    "splitcifar100": ("splitcifar100", "SPLIT_CIFAR100"),
    "intents": ("intents", "INTENTS"),
    "procgen-bc": ("procgen", "PROCGEN_BC"),
    "procgen-lifelong": ("procgen", "PROCGEN_LIFELONG"),
}

__getattr__, __dir__ = on_first_use(__name__)
