"""One registry of methods: what each is called, what it reads, and how its learner is built.

>>> @method("mine", "a network that ...", label="Mine")        # doctest: +SKIP
... def mine(setup: Setup) -> Learner:
...     return Learner(setup.scenario, setup.descent())
"""

from .config import Config
from .learners import Learner
from .registry import METHODS, Description, Method, Style, describe, find_method, method
from .setup import Setup

from . import supervised, policy  # isort: skip  (they register, in this order)
from .supervised import register_consolidation  # isort: skip

__all__ = [
    "METHODS",
    "Config",
    "Description",
    "Learner",
    "Method",
    "Setup",
    "Style",
    "describe",
    "find_method",
    "method",
    "policy",
    "register_consolidation",
    "supervised",
]
