"""The audit: measure how much the order of the data matters to any learner."""

from .answers import LearnerError
from .decomposition import Decomposition, decompose, order_p_value
from .learners import TaskLearner, from_partial_fit, from_torch
from .measure import order_sensitivity
from .result import LearnerAudit, OrderSensitivity, Tail, Tails
from .slope import RateSlope, rate_slope

__all__ = [
    "Decomposition", "LearnerAudit", "LearnerError", "OrderSensitivity", "RateSlope", "Tail",
    "Tails", "TaskLearner", "decompose", "from_partial_fit", "from_torch", "order_p_value",
    "order_sensitivity", "rate_slope",
]  # fmt: skip
