"""`ExactClassifier` and `ExactRegressor`."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from ..exact import ExactHead
from .base import ExactEstimator

TARGET_LIMIT = 16.0  # in units of target_scale; larger targets are refused


@dataclass(eq=False, repr=False)
class ExactClassifier(ClassifierMixin, ExactEstimator):
    """The exact head as a scikit-learn classifier: no order and no batching changes a bit.

    Args:
        features: `"relu"`: random ReLU features; `"linear"`: the inputs themselves, such as
            embeddings; or a frozen module (or `ol.Ensemble`),
            which is given float32 rows `[B, d]`, not scaled unless `input_scale` is set.
        n_features: the number of random features; None: max(1024, 4 d) for d columns.
        input_mean, input_scale: a number or one per column; None: from the data of `fit`
            (`orderless.estimators` explains their role).
        class_prior: class frequencies to assume when predicting: None (those of the data),
            `"uniform"` (in the place of balanced class weights), or one number per class.
        random_state: an int, a RandomState or None, as in scikit-learn.
        device: the torch device.
        ledger: keep 16 bytes per sample and refuse to forget one that was never learned; without
            it, most such deletions are not noticed. It is saved with the model; see `drop_ledger`.

    Attributes: `classes_`, `n_features_in_`, `feature_names_in_`, `head_` (the `ol.ExactHead`,
    which takes scaled inputs), `input_mean_`, `input_scale_`.

    `a + b` has the data of both (classes aligned by label), and `a - b` and `forget` remove data.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0, "same", "different")
    >>> bool(ExactClassifier(random_state=0).fit(X, y).score(X, y) > 0.9)
    True
    """

    class_prior: Any = field(default=None, kw_only=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn more data; new labels are added to `classes_`."""
        return self._absorb(X, y, sample_weight, anew=False, classes=classes)

    def _head_options(self) -> dict[str, Any]:
        return {"classes": len(self.classes_), "class_prior": self.class_prior}

    def _meet(self, y: np.ndarray, classes: Any, first: bool) -> None:
        """Update `classes_` with the named classes and those in y."""
        known = np.unique(y)
        if classes is not None:
            known = _union(np.unique(column_or_1d(classes)), known)
        if not first:
            known = _union(self.classes_, known)
            if len(known) > len(self.classes_):
                self.head_ = self._relabelled(known)
        self.classes_: np.ndarray = known

    def _relabelled(self, classes: np.ndarray) -> ExactHead:
        """The head with a column for each of `classes`, which include ours."""
        places = np.searchsorted(classes, self.classes_.astype(classes.dtype))
        result = self.head_.relabelled(places.tolist(), len(classes))
        self._describe(result, classes)
        return result

    def _align(self, other: Any) -> tuple[ExactHead, ExactHead]:
        classes = _union(self.classes_, other.classes_)
        heads = self._relabelled(classes), other._relabelled(classes)
        self.classes_ = classes
        return heads

    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        # twice, because a batch of a stream may well hold as many classes as samples
        check_classification_targets(np.concatenate([y, y]))
        return y

    def _targets(self, y: np.ndarray) -> Tensor:
        """Labels as indices into `classes_`."""
        codes = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[codes] != y
        if unknown.any():
            wrong = y[unknown].tolist()[0]
            raise ValueError(f"y must hold labels of {self.classes_.tolist()}, got {wrong!r}")
        return torch.from_numpy(codes.astype(np.int64)).to(self.device)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities `[n, C]`, columns in the order of `classes_`."""
        return torch.cat([self.head_.predict(rows) for rows in self._rows(X)]).cpu().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row `[n]`."""
        places = self.predict_proba(X).argmax(axis=1)  # first: it checks that this is fitted
        return self.classes_[places]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`; -inf for a class without data."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-probabilities `[n, C]`; for two classes the log-odds of the second `[n]`."""
        logs = self.predict_log_proba(X)
        return logs[:, 1] - logs[:, 0] if len(self.classes_) == 2 else logs


def _union(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The sorted labels of both; numbers, texts and truth values cannot be mixed."""
    names = {"b": "truth"} | dict.fromkeys("iuf", "number")
    if len({names.get(part.dtype.kind, "text") for part in (ours, theirs)}) > 1:
        examples = f"{ours.tolist()[:3]} and {theirs.tolist()[:3]}"
        raise ValueError(
            f"labels must be all numbers, all texts or all truth values, got {examples}"
        )
    return np.union1d(ours, theirs)


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
