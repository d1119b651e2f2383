"""One registry of methods: a name, and how to build the learner it stands for.

>>> @method("mine", "a network that ...")                      # doctest: +SKIP
... def mine(setup: Setup) -> Learner:
...     return Learner(setup.scenario, setup.descent())
"""

from .registry import METHODS, Method, find_method, method
from .setup import Setup

from . import supervised, policy  # noqa: F401  # isort: skip  (they register, in this order)

__all__ = ["METHODS", "Method", "Setup", "find_method", "method"]
