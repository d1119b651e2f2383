"""Learners: filters that learn the tasks of a scenario one after another."""

from .continual import ContinualLearner
from .exact import ExactLearner
from .filtered import Learner
from .kept import KeptLearner
from .product import ProductLearner
from .replay import Reservoir

__all__ = [
    "ContinualLearner", "ExactLearner", "KeptLearner", "Learner",
    "ProductLearner", "Reservoir",
]  # fmt: skip
