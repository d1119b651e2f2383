"""The exact head: frozen features, and the posterior of a linear head in closed form."""

from .head import ExactHead
from .solution import Predictive

__all__ = ["ExactHead", "Predictive"]
