"""From scores to numbers: average, order and seed variance, forgetting, transfer, calibration.

All functions take and return numpy arrays and floats, for any learner. A score that is not finite
raises an error and is never skipped: means over different subsets cannot be compared.
"""

from .networks import (
    area_under_curve,
    disagreement,
    dormant_share,
    ece,
    effective_rank,
    mean_abs_weight,
    nll,
)
from .runs import (
    backward_transfer,
    final_average,
    first_minus_last,
    forgetting,
    forward_transfer,
    just_learned,
)
from .scores import (
    Difference,
    average,
    difference_across,
    interval,
    mean_interval,
    normalized_order_variance,
    normalized_variance,
    order_averages,
    order_contributions,
    order_variance,
    paired_difference,
    seed_variance,
    variance,
    worst_order,
)

__all__ = [
    "Difference", "area_under_curve", "average", "backward_transfer", "difference_across",
    "disagreement", "dormant_share", "ece", "effective_rank", "final_average", "first_minus_last",
    "forgetting", "forward_transfer", "interval", "just_learned", "mean_abs_weight",
    "mean_interval", "nll", "normalized_order_variance", "normalized_variance", "order_averages",
    "order_contributions", "order_variance", "paired_difference", "seed_variance", "variance",
    "worst_order",
]  # fmt: skip
