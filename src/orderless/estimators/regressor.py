"""The regressor."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from .base import ROWS, ParticleEstimator, scaling_of

TARGET_LIMIT = 16.0  # in units of target_scale; larger targets are refused


@dataclass(eq=False, repr=False)
class ParticleRegressor(RegressorMixin, ParticleEstimator):
    """A weighted set of networks as a scikit-learn regressor with error bars.

    Args: those of `ParticleClassifier` without class_weight and class_prior, and
        target_mean, target_scale: y is learned as (y - target_mean) / target_scale; None: from the
            data of `fit`, and 1 in a stream of `partial_fit`. Targets beyond 16 scales are refused.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> model = ParticleRegressor(random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, deviation = model.predict(X, return_std=True)
    >>> bool(np.abs(mean - np.sin(X[:, 0])).max() < 0.1)
    True
    """

    target_mean: float = field(default=0.0, kw_only=True)
    target_scale: float | None = field(default=None, kw_only=True)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn more data."""
        return self._absorb(X, y, None, sample_weight, anew=False)

    def _validated(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        options: Any = {"dtype": [np.float64, np.float32], "y_numeric": True}
        X, y = validate_data(self, X, y, reset=reset, **options)
        return X, column_or_1d(y, warn=True).astype(np.float64)

    def _begin(self, X: np.ndarray | None, y: np.ndarray, weights: np.ndarray | None) -> None:
        given, scale = self.target_mean, self.target_scale
        mean, scale = scaling_of("target", given, scale, None if X is None else y, weights, ())
        if X is not None and self.target_scale is None:
            # for a heavy tail the grid becomes coarser instead of raising an error
            scale = max(scale, float(np.abs(y - mean).max()) / (0.99 * TARGET_LIMIT))
        self.target_mean_, self.target_scale_ = float(mean), float(scale)
        self._squares, self._count = 0.0, 0.0
        super()._begin(X, y, weights)

    def _targets(self, y: np.ndarray) -> Tensor:
        values = (y - self.target_mean_) / self.target_scale_
        if np.abs(values).max() > TARGET_LIMIT:
            raise ValueError(
                f"targets must lie within {TARGET_LIMIT:g} times target_scale="
                f"{self.target_scale_:g} of target_mean={self.target_mean_:g}: set both to fit y"
            )
        return torch.from_numpy(values)

    def _follow(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> None:
        if self.method != "rb":
            parts = self._inputs(X, learning=False).split(ROWS)
            residuals = y - self._unscaled([self._moments(rows)[0] for rows in parts])
            mass = np.ones(len(y)) if weights is None else weights
            self._squares += float(mass @ np.square(residuals))
            self._count += float(mass.sum())

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs.squeeze(-1), targets, reduction="none") / 2

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mixture's mean `[n]`, and with `return_std` its standard deviation `[n]`.

        rb: of the exact predictive distribution, including noise. wpf and averaging: a rough value,
        the variance over particles plus the mean squared residual of the training data.
        """
        means, variances = zip(*[self._moments(rows) for rows in self._rows(X)], strict=True)
        mean = self._unscaled(means)
        if not return_std:
            return mean
        noise = 0.0 if self.method == "rb" else self._squares / max(self._count, 1.0)
        variance = torch.cat(variances).cpu().numpy() * self.target_scale_**2
        return mean, np.sqrt(variance + noise)

    def _unscaled(self, means: Sequence[Tensor]) -> Any:
        """Means of several parts in the units of y `[n]`."""
        return torch.cat([*means]).cpu().numpy() * self.target_scale_ + self.target_mean_

    def _moments(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance `[B]` of the mixture at scaled inputs, in scaled units."""
        if self.method == "rb":
            mean, variance = self.filter_.predictive(rows)
            return mean[:, 0], variance[:, 0]
        outputs, weights = self.filter_.outputs(rows).squeeze(-1), self.filter_.weights
        mean = self.filter_.average(outputs, weights)
        return mean, self.filter_.average((outputs - mean).square(), weights)
