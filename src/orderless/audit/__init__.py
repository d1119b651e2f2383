"""The audit: measure how much the order of the data matters to any learner."""

from .courses import LearnerError, from_torch
from .measure import order_sensitivity
from .result import Decomposition, OrderSensitivity, WorstOrder, decompose

__all__ = [
    "Decomposition", "LearnerError", "OrderSensitivity", "WorstOrder", "decompose", "from_torch",
    "order_sensitivity",
]  # fmt: skip
