"""The registry of methods: names, settings, and how their learners are built.

>>> @method("mine", "a network that ...", label="Mine")        # doctest: +SKIP
... def mine(setup: Setup) -> Learner:
...     return setup.learner(setup.descent())

Reading the registry does not import torch: learners are imported when one is built.
"""

from typing import TYPE_CHECKING

from ..lazy import on_first_use

# tables show the methods in this order
from . import filters, consolidations, replay, exact, product, policy  # noqa: F401  # isort: skip

if TYPE_CHECKING:
    from .learners import ContinualLearner, Learner, Reservoir
    from .registry import METHODS, Description, Method, Style, find_method, method
    from .settings import Settings
    from .setup import PolicySetup, Setup

__all__ = [
    "METHODS", "ContinualLearner", "Description", "Learner", "Method", "PolicySetup", "Reservoir",
    "Settings", "Setup", "Style", "find_method", "method",
]  # fmt: skip

__getattr__, __dir__ = on_first_use(__name__)
