"""The classifier."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from ..exact import ExactHead
from ..exact.intake import LARGEST_WEIGHT
from .base import ExactEstimator, dense


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
        class_weight: `"balanced"`: inversely proportional to the class frequencies in the y of
            `fit`; a dict of weights, 1 for labels it does not name; or None. Kept as
            `class_weight_`, rounded to sixteenths, 1/16 to 16, relative to the largest.
        class_prior: class frequencies to assume when predicting: None (those of the data),
            `"uniform"`, or one number per class. For streams, whose frequencies are not known.
        random_state: an int, a RandomState or None, as in scikit-learn.
        device: the torch device.

    Attributes: `classes_`, `n_features_in_`, `feature_names_in_`, `head_` (the `ol.ExactHead`,
    which takes scaled inputs), `input_mean_`, `input_scale_`, `class_weight_`.

    `a + b` has the data of both (classes aligned by label), and `a - b` and `forget` remove data.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0, "same", "different")
    >>> bool(ExactClassifier(random_state=0).fit(X, y).score(X, y) > 0.9)
    True
    """

    class_weight: Any = field(default=None, kw_only=True)
    class_prior: Any = field(default=None, kw_only=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn more data; new labels are added to `classes_`."""
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs the y of fit, which a stream does not have: give a "
                "dict as class_weight, or class_prior='uniform' to balance the predictions"
            )
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
        result.meaning = self._meaning(classes)
        return result

    def _align(self, other: Any) -> tuple[ExactHead, ExactHead]:
        if "balanced" in (self.class_weight, other.class_weight):
            raise ValueError(
                "class_weight='balanced' differs between estimators, which cannot be added then: "
                "give both the same dict"
            )
        ours, theirs = ((each.class_weight_, each._other_weight) for each in (self, other))
        if ours != theirs:  # `forget` could not tell whose sample it is
            raise ValueError(
                f"class_weight is {self.class_weight} here and {other.class_weight} there: give "
                "both the same dict"
            )
        classes = _union(self.classes_, other.classes_)
        heads = self._relabelled(classes), other._relabelled(classes)
        self.classes_ = classes
        return heads

    def _validated(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        options: Any = {"dtype": [np.float64, np.float32], "accept_sparse": True}
        X, y = validate_data(self, X, y, reset=reset, **options)
        y = column_or_1d(y, warn=True)
        # twice, because a batch of a stream may well hold as many classes as samples
        check_classification_targets(np.concatenate([y, y]))
        return dense(X), y

    def _targets(self, y: np.ndarray) -> Tensor:
        """Labels as indices into `classes_`."""
        codes = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[codes] != y
        if unknown.any():
            wrong = y[unknown].tolist()[0]
            raise ValueError(f"y must hold labels of {self.classes_.tolist()}, got {wrong!r}")
        return torch.from_numpy(codes.astype(np.int64)).to(self.device)

    def _begin(self, X: np.ndarray | None, y: np.ndarray, weights: np.ndarray | None) -> None:
        """Set `class_weight_`, a weight per label or None if all are 1; then begin as usual."""
        self.class_weight_: dict[Any, float] | None = None
        self._other_weight = 1.0  # of labels that `class_weight_` does not name
        if self.class_weight == "balanced":
            counts = np.bincount(np.searchsorted(self.classes_, y), weights, len(self.classes_))
            present = counts > 0
            inverse = counts.sum() / (present.sum() * counts[present])
            given = dict(zip(self.classes_[present].tolist(), inverse.tolist(), strict=True))
            self.class_weight_ = given
        elif isinstance(self.class_weight, dict):
            self.class_weight_ = {label: float(w) for label, w in self.class_weight.items()}
            if not all(0.0 <= weight < np.inf for weight in self.class_weight_.values()):
                raise ValueError(f"class_weight must not be negative, got {self.class_weight}")
        elif self.class_weight is not None:
            raise ValueError(
                f"class_weight must be 'balanced', a dict or None, got {self.class_weight!r}"
            )
        if self.class_weight_ is not None:
            self.class_weight_, self._other_weight = _in_sixteenths(self.class_weight_)
        super()._begin(X, y, weights)

    def _mass(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """The weights of the samples times those of their classes."""
        if self.class_weight_ is None:
            return weights
        own, other = self.class_weight_, self._other_weight
        of_class = np.array([own.get(label, other) for label in y.tolist()])
        return of_class if weights is None else of_class * weights

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


def _in_sixteenths(weights: dict[Any, float]) -> tuple[dict[Any, float], float]:
    """Round weights so that sums stay exact; scale all of them down if one is larger than 16.

    Also return what the weight 1 of all other labels becomes.
    """
    factor = LARGEST_WEIGHT / max([LARGEST_WEIGHT, *weights.values()])
    *own, other = [max(1, round(16 * factor * w)) / 16 for w in (*weights.values(), 1.0)]
    return dict(zip(weights, own, strict=True)), other


def _union(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The sorted labels of both; numbers, texts and truth values cannot be mixed."""
    names = {"b": "truth"} | dict.fromkeys("iuf", "number")
    if len({names.get(part.dtype.kind, "text") for part in (ours, theirs)}) > 1:
        examples = f"{ours.tolist()[:3]} and {theirs.tolist()[:3]}"
        raise ValueError(
            f"labels must be all numbers, all texts or all truth values, got {examples}"
        )
    return np.union1d(ours, theirs)
