"""Warnings, once per filter and limit, if a grid loses too much by clipping or rounding."""

import math
import warnings

import torch
from torch import Tensor

from ...features.exact import round_inputs
from .quantize import Block, GridFeatures
from .targets import Classes, Values

_LOOKED_AT = 64  # samples of each update that are checked

# the shares of clipped values, and of squares lost by rounding, above which a warning is given
_CLIPPED = {"input_limit": 0.1, "feature_limit": 0.01, "target_limit": 0.0}
_ROUNDED = {"input_limit": 1e-3, "feature_limit": 1e-4, "target_limit": 1e-4}


class GridWarnings:
    """The warnings of a filter, each given once."""

    def __init__(self) -> None:
        self.told: set[str] = set()  # names of limits
        self.advice: dict[str, str] = {}  # by limit, from an estimator with settings of its own

    def look(
        self,
        grid: GridFeatures,
        kind: Classes | Values,
        x: Tensor,
        y: Tensor,
        targets: Tensor,
        block: Block,
    ) -> None:
        """Check inputs x, features and targets of an update; y are the targets before rounding."""
        x, y, targets = x[:_LOOKED_AT], y[:_LOOKED_AT], targets[:_LOOKED_AT]
        limit = getattr(grid.particles.template, "input_limit", None)
        if limit is not None and x.is_floating_point():
            inside = round_inputs(x, limit, torch.float64)
            self.compare("inputs", x, inside, limit, "input_limit")
        features, raw = block.features[:, :_LOOKED_AT], block.raw[:, :_LOOKED_AT]
        self.compare("features", raw, features, grid.limit, "feature_limit")
        if isinstance(kind, Values):
            values = y.double().reshape(targets.shape)
            self.compare("targets", values, targets, kind.limit, "target_limit")

    def compare(self, what: str, raw: Tensor, rounded: Tensor, limit: float, setting: str) -> None:
        """Compare values with the rounded ones on a grid that ends at +-limit."""
        if setting in self.told or not raw.any():
            return
        raw = raw.double()
        clipped = (raw.abs() > limit).double().mean().item()
        lost = (raw.clamp(-limit, limit) - rounded).square().sum() / raw.square().sum()
        if clipped > _CLIPPED[setting]:
            how = f"{100 * clipped:.0f} % of the {what} lie beyond +-{limit:g} and are clipped"
        elif lost > _ROUNDED[setting]:
            how = f"the {what} are so small that rounding takes {100 * lost:.1f} % of their squares"
        else:
            return
        self.told.add(setting)
        # a power of two, at least twice the largest value seen
        better = 2.0 ** math.ceil(math.log2(2.0 * raw.abs().max().item()))
        advice = self.advice.get(setting, f"scale them, or set {setting}={better!r}")
        warnings.warn(f"{how}: {advice}", stacklevel=6)
