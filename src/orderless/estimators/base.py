"""The common base of classifier and regressor: features, scaling, algebra of data, state."""

import copy
import hashlib
import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_regressor
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..exact import ExactHead
from ..features import RandomReLU
from ..features.exact import check_whole
from ..scaling import ExactScaler

ROWS = 4096  # predicted at a time
FLOATS = [np.float64, np.float32]  # other numbers become the first
_SCALES = ("input_mean_", "input_scale_", "target_mean_", "target_scale_")
_ARRAYS = ("input_mean_", "input_scale_")
_LEARNED = (
    *_SCALES, "seed_", "n_features_in_", "scaled_by_data_", "feature_names_in_",
)  # fmt: skip


@dataclass(eq=False, repr=False)  # scikit-learn reads the parameters from the signature
class ExactEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """Features, scaling, algebra and state of classifier and regressor.

    Estimators form an algebra of data: `a + b`, `a - b`. Both need the same features and scales.
    Classes are aligned by label, never by index: 'cat' in one and 'cat' in the other are one class,
    whatever other classes either knows.
    """

    features: Any = "relu"
    _: KW_ONLY
    n_features: int | None = None
    input_mean: Any = 0.0
    input_scale: Any = None
    random_state: Any = None
    device: str = "cpu"
    ledger: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # ---------------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn X `[n, d]` with labels or values y `[n]`; discard what was learned before.

        Weights are multiples of 1/16 up to 16; a whole weight k is the same as k copies of the
        sample, to the bit.
        """
        return self._absorb(X, y, sample_weight, anew=True)

    def _absorb(
        self, X: Any, y: Any, sample_weight: Any, *, anew: bool, classes: Any = None
    ) -> Self:
        """Learn data from the beginning, or more data of a stream."""
        first = anew or not hasattr(self, "head_")
        with self._all_or_nothing():
            X, y = self._validated(X, y, reset=first)
            self._meet(y, classes, first)
            X, y, weights = _weighted(X, y, sample_weight)
            if first:
                self._begin(X if anew else None, y, weights)
            inputs = self._inputs(X)
            self.head_.update(inputs, self._targets(y), sample_weight=weights)
        return self

    def forget(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Remove samples that were learned; see `ExactHead.forget`. With a ledger, samples that
        were never learned are refused."""
        check_is_fitted(self, "head_")
        X, y = self._validated(X, y, reset=False)
        X, y, weights = _weighted(X, y, sample_weight)
        inputs, targets = self._inputs(X), self._targets(y)
        if self.scaled_by_data_:
            warnings.warn(
                "the scales come from the data of fit and keep a trace of forgotten samples: set "
                "input_scale (and target_scale) for exact deletion",
                stacklevel=2,
            )
        self.head_.forget(inputs, targets, sample_weight=weights)
        return self

    def drop_ledger(self) -> Self:
        """Forget which samples were learned, but not what was learned from them. To be done before
        the estimator is published."""
        check_is_fitted(self, "head_")
        self.head_.drop_ledger()
        self.ledger = False
        return self

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore all attributes if the block raises an error."""
        before = vars(self).copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _begin(self, X: np.ndarray | None, y: np.ndarray, weights: np.ndarray | None) -> None:
        """Set the scales and make a new head; X is None if no scale may come from the data."""
        self.scaled_by_data_ = False
        # a module decides by itself what its inputs mean
        data = X if isinstance(self.features, str) else None
        self.input_mean_, self.input_scale_ = self._scales(
            "input", self.input_mean, self.input_scale, data, weights, self.n_features_in_
        )
        self._scale_targets(None if X is None else y, weights)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.head_ = self._make_head()

    def _scales(
        self,
        name: str,
        mean: Any,
        scale: Any,
        data: np.ndarray | None,
        weights: np.ndarray | None,
        columns: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The given mean and scale, checked, or those of the data where no scale is given."""
        if scale is None and data is not None:
            self.scaled_by_data_ = True
            scaler = ExactScaler().add(data, weights)
            return scaler.mean, scaler.scale
        mean = np.asarray(mean, np.float64)
        scale = np.asarray(1.0 if scale is None else scale, np.float64)
        for what, value in (("mean", mean), ("scale", scale)):
            if value.shape not in ((), (columns,)) or not np.isfinite(value).all():
                raise ValueError(
                    f"{name}_{what} must be finite, a number or one per column, got "
                    f"{value.tolist()}"
                )
        if not (scale > 0).all():
            raise ValueError(f"{name}_scale must be positive, got {scale.tolist()}")
        return mean, scale

    def _scale_targets(self, y: np.ndarray | None, weights: np.ndarray | None) -> None:
        """Set the scales of targets; y is None if they may not come from the data."""

    def _make_head(self) -> ExactHead:
        head = ExactHead(self._feature_map(), ledger=self.ledger, **self._head_options())
        if head.grid.device != torch.device(self.device):
            head.to(self.device)
        self._describe(head, getattr(self, "classes_", None))
        return head

    def _feature_map(self) -> Any:
        """What the head takes as features."""
        if isinstance(self.features, str) and self.features == "relu":
            inputs = self.n_features_in_
            count = max(1024, 4 * inputs) if self.n_features is None else self.n_features
            count = check_whole("n_features", count, 1)
            make = partial(RandomReLU, inputs, count)
            return Ensemble(make, 1, seed=self.seed_, device=self.device)
        if self.n_features is not None:
            raise ValueError(f"n_features={self.n_features} needs features='relu'")
        if isinstance(self.features, str) and self.features != "linear":
            raise ValueError(
                f"features must be 'relu', 'linear' or a module, got {self.features!r}"
            )
        return self.features

    @abstractmethod
    def _head_options(self) -> dict[str, Any]:
        """The options of the head besides its features."""

    def _validated(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """X and y after scikit-learn's checks."""
        numeric = is_regressor(self)
        X, y = validate_data(
            self, X, y, reset=reset, dtype=FLOATS, accept_sparse=True, y_numeric=numeric
        )
        return _dense(X), self._checked_targets(column_or_1d(y, warn=True))

    @abstractmethod
    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        """y `[n]` if it is of the kind that is learned."""

    def _meet(self, y: np.ndarray, classes: Any, first: bool) -> None:
        """Register the labels of new data before it is learned."""

    @abstractmethod
    def _targets(self, y: np.ndarray) -> Tensor:
        """y as the head takes it `[n]`."""

    # ---------------------------------------------------------------------- reading

    def _inputs(self, X: np.ndarray) -> Tensor:
        """Scaled inputs `[n, d]`: float64 for our own maps, float32 for a module."""
        scaled = (X.astype(np.float64) - self.input_mean_) / self.input_scale_
        inputs = torch.from_numpy(scaled).to(self.device)
        return inputs if isinstance(self.features, str) else inputs.float()

    def _rows(self, X: Any) -> Iterator[Tensor]:
        """Scaled inputs to predict, in parts of at most `ROWS`."""
        check_is_fitted(self, "head_")
        X = validate_data(self, X, reset=False, dtype=FLOATS, accept_sparse=True)
        return iter(self._inputs(_dense(X)).split(ROWS))

    def export(self) -> nn.Module:
        """What predicts, as an ordinary module: raw inputs X `[n, d]` to probabilities `[n, C]` in
        the order of `classes_`, or to values `[n]`. Scaling is part of it.

        Later updates do not change it.
        """
        check_is_fitted(self, "head_")
        return ExportedEstimator(self)

    # ---------------------------------------------------------------------- several estimators

    def __add__(self, other: Any) -> Self:
        """A new estimator with the data of both and the settings of this one."""
        return self._combined(other, operator.add)

    def __sub__(self, other: Any) -> Self:
        """A new estimator with this one's data without the other's."""
        return self._combined(other, operator.sub)

    def __radd__(self, other: Any) -> Self:
        """0 + a, so that `sum` works."""
        if not isinstance(other, int) or other != 0:
            return NotImplemented
        check_is_fitted(self, "head_")
        result = copy.copy(self)
        result.head_ = 0 + self.head_
        return result

    def _combined(self, other: Any, combine: Callable[[Any, Any], Any]) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        check_is_fitted(self, "head_")
        check_is_fitted(other, "head_")
        ours, theirs = (getattr(each, "feature_names_in_", None) for each in (self, other))
        if ours is not None and theirs is not None and not np.array_equal(ours, theirs):
            raise ValueError(
                f"the columns are {ours.tolist()} here and {theirs.tolist()} there: learn from the "
                "same columns in the same order"
            )
        result = copy.copy(self)
        result.head_ = combine(*result._align(other))
        return result

    def _align(self, other: Any) -> tuple[ExactHead, ExactHead]:
        """The heads of both, with the same columns."""
        return self.head_, other.head_

    def _describe(self, head: ExactHead, classes: np.ndarray | None) -> None:
        """Tell a head what its inputs and labels mean."""
        head.meaning = {name[:-1]: _plain(getattr(self, name, None)) for name in _SCALES}
        if self.features == "relu":
            head.meaning["random_state"] = self.seed_
        if classes is not None:
            labels = classes.tolist()
            head.meaning["classes"] = labels
            head.label_names = torch.tensor([_label_name(label) for label in labels])

    # ---------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, object]:
        """The parameters and the learned state; see `ol.save`. A module of features is not in it:
        load into an estimator that has it."""
        check_is_fitted(self, "head_")
        parameters = self.get_params(deep=False)
        if isinstance(parameters["random_state"], np.random.RandomState):
            parameters["random_state"] = None  # the seed drawn from it is saved
        if not isinstance(self.features, str):
            del parameters["features"]
        learned = {name: _plain(getattr(self, name)) for name in _LEARNED if hasattr(self, name)}
        if hasattr(self, "classes_"):
            learned["classes_"] = [self.classes_.tolist(), self.classes_.dtype.str]
        return {
            "kind": type(self).__name__,
            "parameters": _plain(parameters),
            "learned": learned,
            "head": self.head_.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the learned state, and the parameters except for `device`."""
        if state.get("kind") != type(self).__name__:
            raise ValueError(f"this state is of a {state.get('kind')}, not a {type(self).__name__}")
        with self._all_or_nothing():
            self.set_params(**{**state["parameters"], "device": self.device})
            learned = dict(state["learned"])
            for name in _ARRAYS:
                learned[name] = np.asarray(learned[name])
            self.__dict__.pop("feature_names_in_", None)
            if "feature_names_in_" in learned:
                learned["feature_names_in_"] = np.array(learned["feature_names_in_"], object)
            if "classes_" in learned:
                labels, kind = learned["classes_"]
                learned["classes_"] = np.array(labels, dtype=np.dtype(kind))
            self.__dict__.update(learned)
            self.head_ = self._make_head()
            self.head_.load_state_dict(state["head"])


class ExportedEstimator(nn.Module):
    """Scaling, features and head as one module; see `export`."""

    input_mean: Tensor
    input_scale: Tensor

    def __init__(self, estimator: ExactEstimator) -> None:
        super().__init__()
        classes = hasattr(estimator, "classes_")
        self.head = estimator.head_.export(probabilities=classes)
        self.dtype = torch.float64 if isinstance(estimator.features, str) else torch.float32
        for name in _ARRAYS:
            scale = torch.as_tensor(getattr(estimator, name), device=estimator.device)
            self.register_buffer(name[:-1], scale)
        self.target_mean = getattr(estimator, "target_mean_", None)
        self.target_scale = getattr(estimator, "target_scale_", 1.0)

    def forward(self, x: Tensor) -> Tensor:
        inputs = (x.double() - self.input_mean) / self.input_scale
        outputs = self.head(inputs.to(self.dtype))
        if self.target_mean is None:
            return outputs
        return outputs[:, 0] * self.target_scale + self.target_mean


def _dense(X: Any) -> np.ndarray:
    """A sparse matrix as an array: features of it are dense anyway."""
    return X.toarray() if hasattr(X, "toarray") else X


def _weighted(
    X: np.ndarray, y: np.ndarray, sample_weight: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The samples with a positive weight, and their weights if any are given."""
    if sample_weight is None:
        return X, y, None
    weights = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True, copy=True
    )
    kept = weights > 0
    if kept.any():
        return X[kept], y[kept], weights[kept]
    raise ValueError("sample_weight must be positive for at least one sample, got only zeros")


def _label_name(label: Any) -> int:
    """A label as a number below 2^48; 1 and 1.0 are one label."""
    whole = isinstance(label, float) and label.is_integer()
    text = str(int(label) if whole else label)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())


def _plain(value: Any) -> Any:
    """A value without numpy's types, as a file can hold it."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value.tolist() if hasattr(value, "tolist") else value
