"""The common base of classifier and regressor: parameters, scaling, batches, algebra, state."""

import copy
import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from orderless_lab.scenarios.streams import keyed_generator

from ..ensemble import Ensemble, per_particle
from ..exact import ExactHead
from ..features import RandomReLU
from ..filters import AveragingParticles, WeightedParticleFilter

METHODS = ("rb", "wpf", "averaging")
INPUT_LIMIT = 4.0  # larger inputs are clipped
ROWS = 4096  # predicted at a time
_ARRAYS = ("input_mean_", "input_scale_")
_SCALES = (*_ARRAYS, "target_mean_", "target_scale_")
_PLAIN = ("seed_", "calls_", "n_features_in_", "scaled_by_data_")
_OPTIONAL = (*_SCALES[2:], "_squares", "_count", "class_weight_", "_other_weight")


@dataclass(eq=False, repr=False)  # scikit-learn reads the parameters from the signature
class ParticleEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """Parameters, scaling, batches, algebra and state of classifier and regressor.

    With `method="rb"` estimators form an algebra of data: `a + b`, `a - b`. Both need the same maps
    (`random_state`) and scales. Classes are aligned by label, never by index: 'cat' in one and
    'cat' in the other are one class, whatever other classes either knows.
    """

    method: str = "rb"
    _: KW_ONLY
    n_particles: int = 4
    n_features: int = 256
    weights: str = "uniform"
    hidden: tuple[int, ...] = (64,)
    lr: float = 0.1
    epochs: int = 20
    batch_size: int = 32
    input_mean: Any = 0.0
    input_scale: Any = None
    random_state: Any = None
    device: str = "cpu"

    def _begin(self, X: np.ndarray | None, y: np.ndarray, weights: np.ndarray | None) -> None:
        """Set the scales and make a new filter; X is None if no scale may come from the data."""
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        for name in ("n_particles", "n_features", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if isinstance(self.hidden, int):
            raise ValueError(f"hidden must be a tuple of widths, got {self.hidden}")
        self.input_mean_, self.input_scale_ = scaling_of(
            "input", self.input_mean, self.input_scale, X, weights, (self.n_features_in_,)
        )
        scales = self.input_scale, getattr(self, "target_scale", 1.0)
        self.scaled_by_data_ = X is not None and any(scale is None for scale in scales)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.calls_ = 0
        self.filter_ = self._make_filter()

    def _make_filter(self) -> Any:
        inputs, values = self.n_features_in_, isinstance(self, RegressorMixin)
        outputs = 1 if values else len(self.classes_)
        ensemble = partial(Ensemble, n=self.n_particles, seed=self.seed_, device=self.device)
        if self.method == "rb":
            # larger biases give features that are 0 on almost all samples, and extrapolate badly
            exact = ExactHead(
                ensemble(RandomReLU(inputs, self.n_features, bias_scale=0.5)),
                weights=self.weights,
                targets="values" if values else "classes",
                classes=None if values else outputs,
                class_prior=getattr(self, "class_prior", None),
            )
            exact.intake.warnings.advice["input_limit"] = "set input_mean and input_scale"
            exact.intake.warnings.advice["target_limit"] = "set target_mean and target_scale"
            meaning = self._meaning(getattr(self, "classes_", None))
            exact.intake = replace(exact.intake, meaning=meaning)
            return exact
        # float64, so that a prediction does not depend on which rows are predicted together
        particles = ensemble(_network(inputs, self.hidden, outputs))
        optimizer = torch.optim.SGD(particles.parameters(), lr=self.lr)
        weighted = self.method == "wpf"
        make: Callable[..., Any] = WeightedParticleFilter if weighted else AveragingParticles
        return make(particles, optimizer, link="identity" if values else "softmax")

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore all attributes if the block raises an error."""
        before = vars(self).copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn X `[n, d]` with labels or values y `[n]`; discard what was learned before.

        With `method="rb"` weights are multiples of 1/16 up to 16; an integer weight k is the same
        as k copies of the sample.
        """
        return self._absorb(X, y, None, sample_weight, anew=True)

    def _absorb(self, X: Any, y: Any, classes: Any, sample_weight: Any, *, anew: bool) -> Self:
        """Learn data from the beginning in all epochs, or more data of a stream in one pass."""
        first = anew or not hasattr(self, "filter_")
        with self._all_or_nothing():
            X, y = self._validated(X, y, reset=first)
            self._meet(y, classes, first)
            X, y, weights = self._weighted(X, y, sample_weight)
            if first:
                self._begin(X if anew else None, y, weights)
            self._learn(X, y, weights, anew)
            self._follow(X, y, weights)
        return self

    def forget(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Remove samples that were learned; see `ExactHead.forget`."""
        self._check_exact("forget")
        X, y = self._validated(X, y, reset=False)
        X, y, weights = self._weighted(X, y, sample_weight)
        targets = self._targets(y)
        if self.scaled_by_data_:
            warnings.warn(
                "the scales come from the data of fit and keep a trace of forgotten samples: set "
                "input_scale (and target_scale) for exact deletion",
                stacklevel=2,
            )
        inputs, mass = self._inputs(X, learning=False), self._mass(y, weights)
        self.filter_.forget(inputs, targets, sample_weight=mass)
        return self

    @abstractmethod
    def _validated(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """X and y after scikit-learn's checks."""

    def _meet(self, y: np.ndarray, classes: Any, first: bool) -> None:
        """Register the labels of new data before it is learned."""

    @abstractmethod
    def _targets(self, y: np.ndarray) -> Tensor:
        """y as the filter takes it `[n]`."""

    def _mass(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """The weight of each sample; None if all are 1."""
        return weights

    def _learn(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, anew: bool) -> None:
        inputs, targets = self._inputs(X), self._targets(y).to(self.device)
        mass = self._mass(y, weights)
        if self.method == "rb":
            self.filter_.update(inputs, targets, sample_weight=mass)
        else:
            particles = self.filter_.particles
            all_mass = torch.from_numpy(np.ones(len(y)) if mass is None else mass).to(self.device)
            for rows in self._batches(len(y), anew):
                x, t, w = inputs[rows], targets[rows], all_mass[rows]
                # a short batch counts in proportion to its samples
                loss = per_particle(
                    lambda outputs, t, w=w: (w * self._losses(outputs, t)).sum() / self.batch_size
                )
                self.filter_.step(lambda x=x, t=t, loss=loss: loss(particles(x), t))
        self.calls_ += 1

    def _batches(self, count: int, anew: bool) -> Iterator[Tensor]:
        for epoch in range(self.epochs if anew else 1):
            generator = keyed_generator("estimator", self.seed_, self.calls_, epoch)
            rows = torch.randperm(count, generator=generator) if anew else torch.arange(count)
            yield from rows.split(self.batch_size)

    def _follow(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> None:
        """Register what was learned from new data."""

    @abstractmethod
    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One network's losses on a batch `[B]`."""

    def _inputs(self, X: np.ndarray, *, learning: bool = True) -> Tensor:
        scaled = (X.astype(np.float64) - self.input_mean_) / self.input_scale_
        beyond = float((np.abs(scaled) > INPUT_LIMIT).mean())
        if learning and beyond > 0.1:
            warnings.warn(
                f"{100 * beyond:.0f} % of the scaled inputs lie beyond +-{INPUT_LIMIT:g} and are "
                "clipped: standardise the data or set input_mean and input_scale",
                stacklevel=5,
            )
        return torch.from_numpy(scaled.clip(-INPUT_LIMIT, INPUT_LIMIT)).to(self.device)

    def _weighted(
        self, X: np.ndarray, y: np.ndarray, sample_weight: Any
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

    def _rows(self, X: Any) -> Iterator[Tensor]:
        """Scaled inputs to predict, in parts of at most `ROWS`."""
        check_is_fitted(self, "filter_")
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return iter(self._inputs(X, learning=False).split(ROWS))

    def __add__(self, other: Any) -> Self:
        """A new estimator with the data of both and the settings of this one."""
        return self._combined(other, operator.add, "be added")

    def __sub__(self, other: Any) -> Self:
        """A new estimator with this one's data without the other's."""
        return self._combined(other, operator.sub, "be subtracted")

    def __radd__(self, other: Any) -> Self:
        """0 + a, so that `sum` works."""
        if not isinstance(other, int) or other != 0:
            return NotImplemented
        self._check_exact("be added")
        result = copy.copy(self)
        result.filter_ = 0 + self.filter_
        return result

    def _combined(self, other: Any, combine: Callable[[Any, Any], Any], verb: str) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        for each in (self, other):
            each._check_exact(verb)
        self._check_alike(other)
        result = copy.copy(self)
        result.filter_ = combine(*result._align(other))
        return result

    def _align(self, other: Any) -> tuple[Any, Any]:
        """The filters of both, with the same columns."""
        return self.filter_, other.filter_

    def _meaning(self, classes: np.ndarray | None) -> str:
        """A text of labels and scales; filters are added only if these are equal."""
        values = [classes, *(getattr(self, name, None) for name in _SCALES)]
        return repr([None if value is None else np.asarray(value).tolist() for value in values])

    def _check_alike(self, other: Any) -> None:
        if self.seed_ != other.seed_:
            raise ValueError(
                "the estimators have different random features: give both the same random_state"
            )
        ours, theirs = (getattr(each, "feature_names_in_", None) for each in (self, other))
        if ours is not None and theirs is not None and not np.array_equal(ours, theirs):
            raise ValueError(
                f"the columns are {ours.tolist()} here and {theirs.tolist()} there: learn from the "
                "same columns in the same order"
            )
        for name in _SCALES:
            ours, theirs = getattr(self, name, None), getattr(other, name, None)
            if not np.array_equal(np.asarray(ours), np.asarray(theirs)):
                raise ValueError(
                    f"{name[:-1]} differs between the estimators: give both the same value instead "
                    "of taking it from the data of each"
                )

    def _check_exact(self, verb: str) -> None:
        check_is_fitted(self, "filter_")
        if self.method != "rb":
            raise ValueError(f"only estimators with method='rb' can {verb}, got {self.method!r}")

    def state_dict(self) -> dict[str, object]:
        """The parameters and the learned state; see `ol.save`."""
        check_is_fitted(self, "filter_")
        parameters = self.get_params(deep=False)
        if isinstance(parameters["random_state"], np.random.RandomState):
            parameters["random_state"] = None  # the seed drawn from it is saved
        state = {"kind": type(self).__name__, "parameters": _plain(parameters)}
        state |= {name: torch.from_numpy(np.asarray(getattr(self, name))) for name in _ARRAYS}
        state |= {name: getattr(self, name) for name in _PLAIN}
        state |= {name: _plain(getattr(self, name)) for name in _OPTIONAL if hasattr(self, name)}
        state["feature_names_in_"] = _plain(getattr(self, "feature_names_in_", None))
        if hasattr(self, "classes_"):
            labels = {"values": self.classes_.tolist(), "dtype": self.classes_.dtype.str}
            state["classes_"] = labels
        return {**state, "filter": self.filter_.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the parameters, except for `device`, and the learned state."""
        if state.get("kind") != type(self).__name__:
            raise ValueError(f"this state is of a {state.get('kind')}, not a {type(self).__name__}")
        with self._all_or_nothing():
            self.set_params(**{**state["parameters"], "device": self.device})
            for name in _ARRAYS:
                setattr(self, name, state[name].numpy())
            for name in (*_PLAIN, *[name for name in _OPTIONAL if name in state]):
                setattr(self, name, state[name])
            self.__dict__.pop("feature_names_in_", None)
            if state["feature_names_in_"] is not None:
                self.feature_names_in_ = np.array(state["feature_names_in_"], dtype=object)
            if labels := state.get("classes_"):
                self.classes_ = np.array(labels["values"], dtype=np.dtype(labels["dtype"]))
            self.filter_ = self._make_filter()
            self.filter_.load_state_dict(state["filter"])


def _plain(value: Any) -> Any:
    """A parameter without numpy's types, as a file can hold it."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def _network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width, dtype=torch.float64), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs, dtype=torch.float64))


def scaling_of(
    name: str,
    mean: Any,
    scale: Any,
    data: np.ndarray | None,
    weights: np.ndarray | None,
    shape: tuple[int, ...],
) -> tuple[Any, Any]:
    """The given mean and scale, or those of the data if the scale is None and data is given."""
    if scale is None and data is not None:
        columns = data.astype(np.float64).reshape(len(data), -1).T
        moments = np.array([_moments(column, weights) for column in columns]).T
        mean, scale = (part.reshape(shape) for part in moments)
        return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)
    mean, scale = np.asarray(mean, np.float64), np.asarray(1.0 if scale is None else scale)
    for what, value in (("mean", mean), ("scale", scale)):
        if value.shape not in ((), shape) or not np.isfinite(value).all():
            raise ValueError(
                f"{name}_{what} must be finite, a number or one per column, got {value.tolist()}"
            )
    if not (scale > 0).all():
        raise ValueError(f"{name}_scale must be positive, got {scale.tolist()}")
    return mean, scale.astype(np.float64)


def _moments(column: np.ndarray, weights: np.ndarray | None) -> tuple[float, float]:
    """Weighted mean and deviation: the same bits in any order, and for weights or repetitions.

    Sums of floats depend on the order of their terms, which here is that of the distinct values.
    """
    values, places = np.unique(column, return_inverse=True)
    mass = np.bincount(places, weights)
    mean = (values * mass).sum() / mass.sum()
    return mean, np.sqrt((np.square(values - mean) * mass).sum() / mass.sum())
