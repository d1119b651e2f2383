"""What classifier and regressor share: parameters, scaling, filters and batches."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from ..features import RandomReLU
from ..filters import AveragingParticles, RaoBlackwellizedFilter, WeightedParticleFilter
from ..particles import Ensemble, per_particle
from ..scenarios.streams import keyed_generator
from .algebra import EstimatorAlgebra

METHODS = ("rb", "wpf", "averaging")
INPUT_LIMIT = 4.0  # inputs beyond are clipped
ROWS = 4096  # predicted at a time


@dataclass(eq=False, repr=False)  # scikit-learn reads the parameters from the signature
class ParticleEstimator(EstimatorAlgebra, ABC):
    """What classifier and regressor share: parameters, scaling, filters, batches."""

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

    # ------------------------------------------------------------------ building

    def _begin(self, X: np.ndarray | None, y: np.ndarray, weights: np.ndarray | None) -> None:
        """Scaling and a new filter; X is None where the scale must not come from the data."""
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
        self.scaled_by_data_ = X is not None and self._scales_are_open()
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.calls_ = 0
        self.filter_ = self._make_filter()

    def _make_filter(self) -> Any:
        inputs, values = self.n_features_in_, isinstance(self, RegressorMixin)
        outputs = self._outputs()
        ensemble = partial(Ensemble, n=self.n_particles, seed=self.seed_, device=self.device)
        if self.method == "rb":
            # larger biases make features that almost no sample has: wild beyond the data
            exact = RaoBlackwellizedFilter(
                ensemble(RandomReLU(inputs, self.n_features, bias_scale=0.5)),
                weights=self.weights,
                targets="values" if values else "classes",
                classes=None if values else outputs,
                class_prior=getattr(self, "class_prior", None),
            )
            exact.warnings.advice["input_limit"] = "set input_mean and input_scale"
            exact.warnings.advice["target_limit"] = "set target_mean and target_scale"
            exact.meaning = self._meaning(getattr(self, "classes_", None))
            return exact
        # float64, so that a prediction does not depend on which rows are predicted together
        particles = ensemble(_network(inputs, self.hidden, outputs))
        optimizer = torch.optim.SGD(particles.parameters(), lr=self.lr)
        weighted = self.method == "wpf"
        make: Callable[..., Any] = WeightedParticleFilter if weighted else AveragingParticles
        return make(particles, optimizer, link="identity" if values else "softmax")

    def _scales_are_open(self) -> bool:
        """Whether `fit` takes a scale from its data."""
        return self.input_scale is None

    # ------------------------------------------------------------------ learning

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn X `[n, d]` with labels or values y `[n]`; forgets what was learned before.

        With `method="rb"` weights are multiples of 1/16 up to 16, and a whole one is repetition.
        """
        X, y = self._validated(X, y, reset=True)
        self._meet(y, None, first=True)
        X, y, weights = self._weighted(X, y, sample_weight)
        self._begin(X, y, weights)
        self._learn(X, y, weights, self.epochs, shuffle=True)
        return self

    def _stream(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        """One pass over more data."""
        first = not hasattr(self, "filter_")
        X, y = self._validated(X, y, reset=first)
        self._meet(y, classes, first)
        X, y, weights = self._weighted(X, y, sample_weight)
        if first:
            self._begin(None, y, weights)
        self._learn(X, y, weights, 1, shuffle=False)
        return self

    def forget(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Take samples away again, as they were given; see `RaoBlackwellizedFilter.forget`."""
        check_is_fitted(self, "filter_")
        self._check_exact("forget")
        X, y = self._validated(X, y, reset=False)
        X, y, weights = self._weighted(X, y, sample_weight)
        targets = self._targets(y)
        self._warn_of_scales()
        inputs, mass = self._inputs(X, learning=False), self._mass(y, weights)
        self.filter_.forget(inputs, targets, sample_weight=mass)
        return self

    @abstractmethod
    def _validated(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """X and y as scikit-learn wants them, or its complaint."""

    def _meet(self, y: np.ndarray, classes: Any, first: bool) -> None:
        """Labels that come, before any of them is learned."""

    @abstractmethod
    def _outputs(self) -> int:
        """How many a network has."""

    @abstractmethod
    def _targets(self, y: np.ndarray) -> Tensor:
        """y as the filter wants it `[n]`."""

    def _mass(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """What each sample counts; None where all count alike."""
        return weights

    def _learn(
        self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, epochs: int, shuffle: bool
    ) -> None:
        inputs, targets = self._inputs(X), self._targets(y).to(self.device)
        mass = self._mass(y, weights)
        if self.method == "rb":
            self.filter_.update(inputs, targets, sample_weight=mass)
        else:
            particles = self.filter_.particles
            all_mass = torch.from_numpy(np.ones(len(y)) if mass is None else mass).to(self.device)
            for rows in self._batches(len(y), epochs, shuffle):
                x, t, w = inputs[rows], targets[rows], all_mass[rows]
                # a short batch counts for what is in it: one step per sample adds up to a batch
                loss = per_particle(
                    lambda outputs, t, w=w: (w * self._losses(outputs, t)).sum() / self.batch_size
                )
                self.filter_.step(lambda x=x, t=t, loss=loss: loss(particles(x), t))
        self.calls_ += 1

    def _batches(self, count: int, epochs: int, shuffle: bool) -> Iterator[Tensor]:
        for epoch in range(epochs):
            generator = keyed_generator("estimator", self.seed_, self.calls_, epoch)
            rows = torch.randperm(count, generator=generator) if shuffle else torch.arange(count)
            yield from rows.split(self.batch_size)

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
        """The samples that count, and their weights if there are any."""
        if sample_weight is None:
            return X, y, None
        weights = _check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True, copy=True
        )
        kept = weights > 0
        if not kept.any():
            raise ValueError("sample_weight is 0 for every sample: nothing is left to learn")
        return X[kept], y[kept], weights[kept]

    def _rows(self, X: Any) -> Iterator[Tensor]:
        """Validated inputs to predict, a bounded number at a time."""
        check_is_fitted(self, "filter_")
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return iter(self._inputs(X, learning=False).split(ROWS))


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
    """Mean and scale as given; from the data where the scale is None and there is any."""
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
    """Weighted mean and deviation, the same bits in any order and for weights as for repetition.

    Sums of floats depend on their terms' order: the terms are the distinct values, ascending.
    """
    values, places = np.unique(column, return_inverse=True)
    mass = np.bincount(places, weights)
    mean = (values * mass).sum() / mass.sum()
    return mean, np.sqrt((np.square(values - mean) * mass).sum() / mass.sum())
