"""What classifier and regressor share: parameters, scaling, filters and batches."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

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


class ParticleEstimator(EstimatorAlgebra, ABC):
    """What classifier and regressor share: parameters, scaling, filters, batches."""

    def __init__(
        self,
        method: str = "rb",
        *,
        n_particles: int = 4,
        n_features: int = 256,
        weights: str = "uniform",
        hidden: tuple[int, ...] = (64,),
        lr: float = 0.1,
        epochs: int = 20,
        batch_size: int = 32,
        input_mean: Any = 0.0,
        input_scale: Any = None,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.n_particles = n_particles
        self.n_features = n_features
        self.weights = weights
        self.hidden = hidden
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.input_mean = input_mean
        self.input_scale = input_scale
        self.random_state = random_state
        self.device = device

    # ------------------------------------------------------------------ building

    def _begin(self, X: np.ndarray | None, weights: np.ndarray | None, outputs: int) -> None:
        """Scaling and a new filter; X and its weights where the scale may come from the data."""
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        for name in ("n_particles", "n_features", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        self.input_mean_, self.input_scale_ = scaling_of(
            "input", self.input_mean, self.input_scale, X, weights, (self.n_features_in_,)
        )
        self.scaled_by_data_ = X is not None and self._scales_are_open()
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.calls_ = 0
        self.filter_ = self._make_filter(outputs)

    def _make_filter(self, outputs: int) -> Any:
        inputs, values = self.n_features_in_, isinstance(self, RegressorMixin)
        options: dict[str, Any] = {"n": self.n_particles, "seed": self.seed_, "device": self.device}
        if self.method == "rb":
            # larger biases make features that almost no sample has: wild beyond the data
            maps = Ensemble(RandomReLU(inputs, self.n_features, bias_scale=0.5), **options)
            kind: dict[str, Any] = {"targets": "values"} if values else {"classes": outputs}
            return RaoBlackwellizedFilter(maps, weights=self.weights, **kind, **self._on_read())
        # float64, so that a prediction does not depend on which rows are predicted together
        particles = Ensemble(_network(inputs, self.hidden, outputs), **options)
        optimizer = torch.optim.SGD(particles.parameters(), lr=self.lr)
        weighted = self.method == "wpf"
        make: Callable[..., Any] = WeightedParticleFilter if weighted else AveragingParticles
        return make(particles, optimizer, link="identity" if values else "softmax")

    def _on_read(self) -> dict[str, Any]:
        """Options of the exact filter that an estimator of this kind has besides."""
        return {}

    def _scales_are_open(self) -> bool:
        """Whether `fit` takes a scale from its data."""
        return self.input_scale is None

    # ------------------------------------------------------------------ learning

    def _learn(
        self,
        X: np.ndarray,
        targets: Tensor,
        weights: np.ndarray | None,
        epochs: int,
        shuffle: bool,
    ) -> None:
        inputs = self._inputs(X)
        if self.method == "rb":
            self.filter_.update(inputs, targets, sample_weight=weights)
        else:
            particles = self.filter_.particles
            mass = torch.ones(len(inputs), dtype=torch.float64)
            mass = (mass if weights is None else torch.from_numpy(weights)).to(inputs.device)
            for rows in self._batches(len(inputs), epochs, shuffle):
                x, y, w = inputs[rows], targets[rows], mass[rows]
                loss = per_particle(lambda outputs, y, w=w: (w * self._losses(outputs, y)).mean())
                # a short batch counts for what is in it: one step per sample adds up to a batch
                share = len(rows) / self.batch_size
                self.filter_.step(
                    lambda x=x, y=y, loss=loss, share=share: share * loss(particles(x), y)
                )
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
                stacklevel=4,
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
