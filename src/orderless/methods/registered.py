"""The registry after this package's own methods have registered, in the order of the tables."""

from . import supervised, policy  # noqa: F401  # isort: skip
from .registry import METHODS, find_method

__all__ = ["METHODS", "find_method"]
