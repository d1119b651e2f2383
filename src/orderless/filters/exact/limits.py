"""A warning, once per filter and limit, where a grid takes away what a head would learn from."""

from __future__ import annotations

import math
import warnings

from torch import Tensor

# From which share of clipped values, and of squared size lost by rounding, a warning is due.
_CLIPPED = {"input_limit": 0.1, "feature_limit": 0.01, "target_limit": 0.0}
_ROUNDED = {"input_limit": 1e-3, "feature_limit": 1e-4, "target_limit": 1e-4}


class GridWarnings:
    """What was told already, by the name of the limit to set."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def look(self, what: str, raw: Tensor, rounded: Tensor, limit: float, setting: str) -> None:
        """Compare values with what is left of them on a grid that ends at +-limit."""
        if setting in self.told or not raw.any():
            return
        raw = raw.double()
        clipped = (raw.abs() > limit).double().mean().item()
        lost = (raw.clamp(-limit, limit) - rounded).square().sum() / raw.square().sum()
        if clipped > _CLIPPED[setting]:
            how = f"{100 * clipped:.0f} % of the {what} lie beyond +-{limit:g} and are clipped"
        elif lost > _ROUNDED[setting]:
            how = f"the {what} are so small that rounding takes {100 * lost:.2g} % of their squares"
        else:
            return
        self.told.add(setting)
        # Room for twice the largest seen; a power of two, as every limit.
        better = 2.0 ** math.ceil(math.log2(2.0 * raw.abs().max().item()))
        warnings.warn(f"{how}: scale them, or set {setting}={better!r}", stacklevel=6)
