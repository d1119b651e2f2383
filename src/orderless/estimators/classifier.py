"""The classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from .base import ParticleEstimator


class ParticleClassifier(ClassifierMixin, ParticleEstimator):
    """A weighted set of networks as a scikit-learn classifier.

    Args:
        method: `"rb"` (default): random features with an exact linear head; learns by sums, so the
            order of the data cannot matter (`orderless.estimators` says what `input_scale` has to
            do with it). `"wpf"`: the weighted particle filter over small networks. `"averaging"`:
            the same, unweighted.
        n_particles: feature maps, or networks.
        n_features: random features of each map (rb).
        weights: of the maps (rb): `"uniform"`, `"evidence"` or `"tempered"`.
        hidden: widths of the hidden layers (wpf, averaging).
        lr, batch_size: of the gradient steps; `epochs`: passes of `fit`; `partial_fit` makes one.
        input_mean, input_scale: a number or one per column; None: from the data of `fit`.
        random_state: an int, a RandomState or None, as everywhere in scikit-learn.
        device: where torch computes.

    Attributes: `classes_`, `n_features_in_`, `feature_names_in_`, `filter_` (the filter itself),
    `input_mean_`, `input_scale_`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0, "same", "different")
    >>> bool(ParticleClassifier(random_state=0).fit(X, y).score(X, y) > 0.9)
    True
    """

    def fit(self, X: Any, y: Any) -> ParticleClassifier:
        """Learn X `[n, d]` with labels y `[n]` of any kind; forgets what was learned before."""
        X, y = self._validated(X, y, reset=True)
        self.classes_ = unique_labels(y)
        self._begin(X, len(self.classes_))
        self._learn(X, self._codes(y), self.epochs, shuffle=True)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> ParticleClassifier:
        """Learn more data; the first call must name all `classes` that will come."""
        first = not hasattr(self, "filter_")
        X, y = self._validated(X, y, reset=first)
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit")
        known = None if classes is None else unique_labels(classes)
        if first:
            self.classes_ = known
        elif known is not None and not np.array_equal(known, self.classes_):
            raise ValueError(f"classes were {list(self.classes_)} before and are {list(known)} now")
        codes = self._codes(y)
        if first:
            self._begin(None, len(self.classes_))
        self._learn(X, codes, 1, shuffle=False)
        return self

    def _validated(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(self, X, y, reset=reset, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        return X, column_or_1d(y, warn=True)

    def _codes(self, y: np.ndarray) -> Tensor:
        """Labels as places in `classes_`."""
        codes = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[codes] != y
        if unknown.any():
            raise ValueError(f"y holds {y[unknown][0]!r}, which is none of {list(self.classes_)}")
        return torch.from_numpy(codes.astype(np.int64)).to(self.device)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The mixture's probabilities `[n, C]`, columns in the order of `classes_`."""
        return torch.cat([self.filter_.predict(rows) for rows in self._rows(X)]).cpu().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row `[n]`."""
        places = self.predict_proba(X).argmax(axis=1)
        return self.classes_[places]
