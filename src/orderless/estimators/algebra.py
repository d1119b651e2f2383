"""Estimators of the exact method as an algebra of data (`a + b`, `a - b`), and their state.

Two estimators can be added where they have the same maps (`random_state`) and scales. Classes are
aligned by label, never by place: 'cat' here and 'cat' there are one class, whatever else is known
at either site.
"""

import copy
import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

_ARRAYS = ("input_mean_", "input_scale_")
_SCALES = (*_ARRAYS, "target_mean_", "target_scale_")
_PLAIN = ("seed_", "calls_", "n_features_in_", "scaled_by_data_")
_OPTIONAL = ("target_mean_", "target_scale_", "_squares", "_count")


class EstimatorAlgebra(BaseEstimator):  # type: ignore[misc]
    """What can be done with the data of estimators besides learning it."""

    method: str
    filter_: Any
    seed_: int
    scaled_by_data_: bool
    classes_: np.ndarray

    def __add__(self, other: Any) -> Self:
        """An estimator with the data of both; this one's settings. Both stay as they are."""
        return self._combined(other, 1)

    def __sub__(self, other: Any) -> Self:
        """An estimator with this one's data without those of the other."""
        return self._combined(other, -1)

    def __radd__(self, other: Any) -> Self:
        """0 + a, with which `sum` begins."""
        if not isinstance(other, int) or other != 0:
            return NotImplemented
        self._check_exact("be added")
        result = copy.copy(self)
        result.filter_ = 0 + self.filter_
        return result

    def _combined(self, other: Any, sign: int) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        for each in (self, other):
            check_is_fitted(each, "filter_")
            each._check_exact("be added" if sign > 0 else "be subtracted")
        self._check_alike(other)
        result = copy.copy(self)
        ours, theirs = result._align(other)
        result.filter_ = ours + theirs if sign > 0 else ours - theirs
        return result

    def _align(self, other: Any) -> tuple[Any, Any]:
        """The filters of both, with columns that mean the same."""
        return self.filter_, other.filter_

    def _meaning(self, classes: np.ndarray | None) -> str:
        """What inputs and labels of the filter stand for; others' are not added to it."""
        values = [classes, *(getattr(self, name, None) for name in _SCALES)]
        return repr([None if value is None else np.asarray(value).tolist() for value in values])

    def _check_alike(self, other: Any) -> None:
        if self.seed_ != other.seed_:
            raise ValueError(
                "these estimators have different random features: give both the same random_state"
            )
        for name in _SCALES:
            ours, theirs = getattr(self, name, None), getattr(other, name, None)
            if not np.array_equal(np.asarray(ours), np.asarray(theirs)):
                raise ValueError(
                    f"{name[:-1]} differs: features of one are not those of the other. Give both "
                    f"the same {name[:-1]} instead of taking it from the data of each"
                )

    def _check_exact(self, verb: str) -> None:
        if self.method != "rb":
            raise ValueError(f"only estimators with method='rb' can {verb}, got {self.method!r}")

    def _warn_of_scales(self) -> None:
        if self.scaled_by_data_:
            warnings.warn(
                "scales were taken from the data of fit, and keep a trace of what is forgotten: "
                "give input_scale (and target_scale) to make deletion exact",
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, object]:
        """Parameters and everything learned; see `ol.save`."""
        check_is_fitted(self, "filter_")
        state: dict[str, object] = {"kind": type(self).__name__, "parameters": self._parameters()}
        state |= {name: torch.from_numpy(np.asarray(getattr(self, name))) for name in _ARRAYS}
        state |= {name: getattr(self, name) for name in _PLAIN}
        state |= {name: getattr(self, name) for name in _OPTIONAL if hasattr(self, name)}
        names = getattr(self, "feature_names_in_", None)
        state["feature_names_in_"] = None if names is None else names.tolist()
        return {**state, **self._own_state(), "filter": self.filter_.state_dict()}

    def _parameters(self) -> dict[str, object]:
        values = self.get_params(deep=False)
        for name, value in values.items():
            values[name] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if isinstance(values["random_state"], np.random.RandomState):
            values["random_state"] = None  # the seed drawn from it is kept
        return values

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over parameters and everything learned."""
        if state.get("kind") != type(self).__name__:
            raise ValueError(f"this state is of a {state.get('kind')}, not a {type(self).__name__}")
        self.set_params(**state["parameters"])
        for name in _ARRAYS:
            setattr(self, name, state[name].numpy())
        for name in (*_PLAIN, *[name for name in _OPTIONAL if name in state]):
            setattr(self, name, state[name])
        if state["feature_names_in_"] is not None:
            self.feature_names_in_ = np.array(state["feature_names_in_"], dtype=object)
        self._load_own_state(state)
        self.filter_ = self._make_filter()
        self.filter_.load_state_dict(state["filter"])

    def _own_state(self) -> dict[str, object]:
        return {}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        pass
