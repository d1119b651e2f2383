"""The audit: measure how much the order of the data matters to any learner."""

from .answers import LearnerError
from .comparison import ComparisonSettings, comparisons
from .decomposition import Decomposition, decompose, order_p_value
from .learners import TaskLearner, from_partial_fit, from_torch
from .measure import order_sensitivity
from .result import LearnerAudit, OrderSensitivity, Tail, Tails

__all__ = [
    "ComparisonSettings", "Decomposition", "LearnerAudit", "LearnerError", "OrderSensitivity",
    "Tail", "Tails", "TaskLearner", "comparisons", "decompose", "from_partial_fit", "from_torch",
    "order_p_value", "order_sensitivity",
]  # fmt: skip
