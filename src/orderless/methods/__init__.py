"""One registry of methods: what each is called, what it reads, and how its learner is built.

>>> @method("mine", "a network that ...", label="Mine")        # doctest: +SKIP
... def mine(setup: Setup) -> Learner:
...     return setup.learner(setup.descent())

Reading the registry needs no torch: what a learner is made of is imported when one is built.
"""

from typing import TYPE_CHECKING

from ..lazy import on_first_use
from .config import Config
from .registry import METHODS, Description, Method, Style, describe, find_method, method

from . import supervised, policy  # isort: skip  (they register, in this order)
from .supervised import register_consolidation  # isort: skip

if TYPE_CHECKING:
    from .learners import Learner
    from .setup import Setup

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

__getattr__, _ = on_first_use(__name__)
