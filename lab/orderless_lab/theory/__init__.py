"""The paper's theorems as code: distances between orders and between weighted particle sets,
the bounds, their constants on small problems, and the measured order dependence of a filter."""

from .bounds import (
    adjacent_swap_bound,
    direct_bound,
    log_posterior_ratios,
    theorem_1,
    theorem_2,
    unrolled_bound,
)
from .constants import Comparisons, Constants, constants_of_swaps, constants_of_trajectory
from .discrepancy import root_energy_distance, wasserstein_1
from .measure import OrderDependence, measure_order_dependence
from .orders import adjacent_swaps, order_at_distance, swap_path
from .sets import (
    FilterUpdate,
    GridMixture,
    WeightedSet,
    bayes_update,
    expected_loss,
    filter_set,
    grid,
    positions_of,
)

__all__ = [
    "Comparisons", "Constants", "FilterUpdate", "GridMixture", "OrderDependence", "WeightedSet",
    "adjacent_swap_bound", "adjacent_swaps", "bayes_update", "constants_of_swaps",
    "constants_of_trajectory", "direct_bound", "expected_loss", "filter_set", "grid",
    "log_posterior_ratios", "measure_order_dependence", "order_at_distance", "positions_of",
    "root_energy_distance", "swap_path", "theorem_1", "theorem_2", "unrolled_bound",
    "wasserstein_1",
]  # fmt: skip
