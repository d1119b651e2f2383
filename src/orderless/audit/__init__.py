"""The audit: how much the order of the data matters to anybody's learner."""

from .comparison import ComparisonSettings, comparisons
from .decomposition import Decomposition, decompose, order_p_value
from .learners import Learner, from_partial_fit, from_torch
from .measure import LearnerError, order_sensitivity
from .result import LearnerAudit, OrderSensitivity

__all__ = [
    "ComparisonSettings",
    "Decomposition",
    "Learner",
    "LearnerAudit",
    "LearnerError",
    "OrderSensitivity",
    "comparisons",
    "decompose",
    "from_partial_fit",
    "from_torch",
    "order_p_value",
    "order_sensitivity",
]
