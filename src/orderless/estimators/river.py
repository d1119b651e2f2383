"""river: one sample at a time, a dictionary of features each; the exact head inside.

    z = sum over features of value * code(name) / input_scale        code(name) in {-1, +1}^256

A sample is hashed to 256 numbers with random signs that depend only on the *names* of its features,
so features may appear and disappear, and the order of samples has no effect on their meaning. A
text value is a feature `name=value` with value 1. Random ReLU features and an exact head follow, as
in `ExactClassifier`: two models that learned the same samples in any order are equal to the bit.
Values should be roughly standardised by fixed units: a scaler that learns from the stream makes the
result depend on the order again. `river.utils.Rolling` gives a sliding window.
"""

import copy
import hashlib
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, SupportsFloat

import numpy as np

from .models import ExactClassifier, ExactRegressor

try:
    from river import base
except ImportError as error:
    raise ImportError(
        "orderless.estimators.river needs river: pip install 'orderless[river]'"
    ) from error


def _code(name: str) -> np.ndarray:
    """The 256 signs of a feature."""
    digest = np.frombuffer(hashlib.sha256(name.encode()).digest(), np.uint8)
    return 2.0 * np.unpackbits(digest) - 1.0


def _row(x: dict[Any, Any]) -> np.ndarray:
    """One sample as a row `[1, 256]`; features are summed in alphabetical order."""
    named = []
    for key, value in x.items():
        if isinstance(value, str):
            named.append((f"{key}={value}", 1.0))
        elif isinstance(value, SupportsFloat):
            named.append((str(key), float(value)))
        else:
            raise TypeError(f"feature {key!r} must be a number or a text, got {value!r}")
    row = np.zeros(256)
    for name, value in sorted(named):  # a list: the keys 1 and "1" have one name
        row += _code(name) * value
    return row[None]


def _target(y: Any) -> Any:
    if isinstance(y, str | SupportsFloat):
        return y
    raise TypeError(f"y must be a text or a number, got {y!r}")


@dataclass(eq=False, repr=False)
class _Stream:
    """The common base of `StreamClassifier` and `StreamRegressor`.

    Args:
        n_features: number of random features.
        input_scale: about the square root of the number of standardised features of a sample.
        seed: seed of the random features.
    """

    n_features: int = 256
    input_scale: float = 2.0
    seed: int = 0
    estimator: Any = field(default=None, init=False)
    _kind: ClassVar[type]

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Learn one sample."""
        estimator = self.estimator
        if estimator is None:
            options = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
            estimator = self._kind(random_state=options.pop("seed"), **options)
        # not if the first sample is refused
        self.estimator = estimator.partial_fit(_row(x), [_target(y)])

    def unlearn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Remove a learned sample exactly, for example in a sliding window."""
        if self.estimator is None:
            raise ValueError("unlearn_one needs a sample that was learned before, and none was")
        self.estimator.forget(_row(x), [_target(y)])

    update = learn_one
    revert = unlearn_one

    def __add__(self, other: Any) -> Self:
        """A model that has learned the samples of both, whatever models they went to."""
        if type(other) is not type(self):
            return NotImplemented
        result = copy.copy(self)
        parts = [part.estimator for part in (self, other) if part.estimator is not None]
        result.estimator = sum(parts) if parts else None
        return result


class StreamClassifier(_Stream, base.Classifier):
    """`ExactClassifier` for river; labels need not be known in advance.

    `a + b` has learned the samples of both. `estimator` is the scikit-learn estimator inside, which
    can be saved and loaded.

    >>> model = StreamClassifier(n_features=32)
    >>> for hour in range(24):
    ...     model.learn_one({"hour": hour / 12 - 1}, "day" if 6 < hour < 20 else "night")
    >>> model.predict_one({"hour": 0.0})
    'day'
    """

    _kind = ExactClassifier

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """Probabilities of the labels seen so far; none without samples."""
        if self.estimator is None or not self.estimator.head_.samples:
            return {}
        shares = self.estimator.predict_proba(_row(x))[0].tolist()
        return dict(zip(self.estimator.classes_.tolist(), shares, strict=True))

    @property
    def _multiclass(self) -> bool:
        return True


@dataclass(eq=False, repr=False)
class StreamRegressor(_Stream, base.Regressor):
    """`ExactRegressor` for river.

    Targets are learned as (y - target_mean) / target_scale and must lie within 16 scales.

    >>> model = StreamRegressor(n_features=32)
    >>> for hour in range(24):
    ...     model.learn_one({"hour": hour / 12 - 1}, 10.0 + hour)
    >>> round(model.predict_one({"hour": 0.0}))
    22
    """

    target_mean: float = 0.0
    target_scale: float = 16.0
    _kind = ExactRegressor

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> float:
        """The mean; `target_mean` without samples."""
        if self.estimator is None or not self.estimator.head_.samples:
            return self.target_mean
        return float(self.estimator.predict(_row(x))[0])
