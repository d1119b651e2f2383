"""The benchmarks: one object per suite, which makes its tasks and networks and says how to score.

To add a suite, register an object: `register(MySuite("mine", "My tasks", "what they are"))`.
"""

from typing import TYPE_CHECKING

from ..lazy import on_first_use

if TYPE_CHECKING:
    from orderless.tasks import Task

    from .base import Outline, Preset, Suite
    from .registry import SUITES, find_suite, register
    from .scenario import Scenario
    from .sentences import Intents
    from .splits import SplitCIFAR100, SplitMNIST
    from .streams import orders
    from .supervised import SupervisedSettings, SupervisedSuite

__all__ = [
    "SUITES", "Intents", "Outline", "Preset", "Scenario", "SplitCIFAR100", "SplitMNIST", "Suite",
    "SupervisedSettings", "SupervisedSuite", "Task", "find_suite", "orders", "register",
]  # fmt: skip

__getattr__, __dir__ = on_first_use(__name__)
