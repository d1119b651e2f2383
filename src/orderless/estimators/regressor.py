"""The regressor."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from torch import Tensor

from .base import ExactEstimator

TARGET_LIMIT = 16.0  # in units of target_scale; larger targets are refused


@dataclass(eq=False, repr=False)
class ExactRegressor(RegressorMixin, ExactEstimator):
    """The exact head as a scikit-learn regressor with error bars.

    Args: those of `ExactClassifier` without class_prior, and
        target_mean, target_scale: y is learned as (y - target_mean) / target_scale; None: from the
            data of `fit`, and 1 in a stream of `partial_fit`. Targets beyond 16 scales are refused.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> model = ExactRegressor(random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, deviation = model.predict(X, return_std=True)
    >>> bool(np.abs(mean - np.sin(X[:, 0])).max() < 0.1)
    True
    """

    target_mean: float = field(default=0.0, kw_only=True)
    target_scale: float | None = field(default=None, kw_only=True)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn more data."""
        return self._absorb(X, y, sample_weight, anew=False)

    def _head_options(self) -> dict[str, Any]:
        return {"targets": "values"}

    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        return y.astype(np.float64)

    def _scale_targets(self, y: np.ndarray | None, weights: np.ndarray | None) -> None:
        column = None if y is None else y[:, None]
        mean, scale = self._scales(
            "target", self.target_mean, self.target_scale, column, weights, 1
        )
        self.target_mean_ = mean.item()
        self.target_scale_ = scale.item()
        if y is not None and self.target_scale is None:
            # for a heavy tail the grid becomes coarser instead of raising an error
            reach = float(np.abs(y - self.target_mean_).max())
            self.target_scale_ = max(self.target_scale_, reach / (0.99 * TARGET_LIMIT))

    def _targets(self, y: np.ndarray) -> Tensor:
        values = (y - self.target_mean_) / self.target_scale_
        if np.abs(values).max() > TARGET_LIMIT:
            raise ValueError(
                f"targets must lie within {TARGET_LIMIT:g} times target_scale="
                f"{self.target_scale_:g} of target_mean={self.target_mean_:g}, got "
                f"{y[np.abs(values).argmax()]:g}: set target_mean and target_scale to about the "
                "mean and the standard deviation of all targets that may come"
            )
        return torch.from_numpy(values).to(self.device)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean `[n]`, and with `return_std` its standard deviation `[n]`, noise
        included."""
        parts = [self.head_.predictive(rows) for rows in self._rows(X)]
        means = torch.cat([part.mean[:, 0] for part in parts]).cpu().numpy()
        mean = means * self.target_scale_ + self.target_mean_
        if not return_std:
            return mean
        variances = torch.cat([part.variance[:, 0] for part in parts]).cpu().numpy()
        return mean, np.sqrt(variances) * self.target_scale_
