"""Learners: filters that learn the tasks of a scenario one after another."""

from .exact import ExactLearner
from .kept import KeptLearner
from .learner import ContinualLearner, Learner
from .product import ProductLearner
from .replay import Reservoir

__all__ = [
    "ContinualLearner", "ExactLearner", "KeptLearner", "Learner",
    "ProductLearner", "Reservoir",
]  # fmt: skip
