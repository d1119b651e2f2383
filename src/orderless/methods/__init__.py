"""One registry of methods: a name, and how to build the learner it stands for.

>>> @method("mine", "a network that ...")                      # doctest: +SKIP
... def mine(setup: Setup) -> Learner:
...     return Learner(setup.scenario, setup.descent())
"""

from typing import TYPE_CHECKING

from ..lazy import on_first_use

if TYPE_CHECKING:
    from .registered import METHODS, find_method
    from .registry import Method, method
    from .setup import Setup

__all__ = ["METHODS", "Method", "Setup", "find_method", "method"]

__getattr__, __dir__ = on_first_use(__name__)
