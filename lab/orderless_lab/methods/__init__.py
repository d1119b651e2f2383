"""The registry of methods: names, settings, and how their learners are built.

>>> @method("mine", "a network that ...", label="Mine")        # doctest: +SKIP
... def mine(setup: Setup) -> Learner:
...     return setup.learner(setup.descent())

Reading the registry does not import torch: learners are imported when one is built.
"""

from typing import TYPE_CHECKING

from ..lazy import on_first_use

from . import supervised, product, policy  # noqa: F401  # isort: skip  (register in order)

if TYPE_CHECKING:
    from .config import Config
    from .learners import Learner
    from .registry import (
        METHODS,
        Description,
        Method,
        Style,
        find_method,
        method,
    )
    from .setup import Setup
    from .supervised import register_consolidation

__all__ = [
    "METHODS", "Config", "Description", "Learner", "Method", "Setup", "Style", "find_method",
    "method", "register_consolidation",
]  # fmt: skip

__getattr__, __dir__ = on_first_use(__name__)
