"""Prequential evaluation: every batch of a stream is predicted first and learned afterwards."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ARRAYS = torch.Tensor, np.ndarray


@dataclass(frozen=True)
class Prequential:
    """The predictions on each batch before it was learned.

    `samples` `[T]`: the number of samples learned before batch t was predicted; `right` `[T]`: the
    number of its correct predictions; `sizes` `[T]`: the number of its samples.

    >>> result = Prequential(np.array([4, 8]), right=np.array([1, 3]), sizes=np.array([4, 4]))
    >>> result.accuracy, result.curve, result.recent(1)
    (0.5, array([0.25, 0.5 ]), array([0.25, 0.75]))
    """

    samples: NDArray[np.int64]
    right: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def accuracy(self) -> float:
        """The accuracy of all predictions; NaN without any."""
        return float(self.right.sum() / self.sizes.sum()) if len(self.sizes) else float("nan")

    @property
    def curve(self) -> NDArray[np.float64]:
        """The accuracy up to each batch, `[T]`."""
        return self.right.cumsum() / self.sizes.cumsum()

    def recent(self, batches: int) -> NDArray[np.float64]:
        """The accuracy over the last `batches` batches up to each batch, `[T]`."""
        if batches < 1:
            raise ValueError(f"batches must be at least 1, got {batches}")

        def window(counts: NDArray[np.int64]) -> NDArray[np.int64]:
            sums = counts.cumsum()
            return sums - np.concatenate([np.zeros(batches, np.int64), sums])[: len(sums)]

        return window(self.right) / window(self.sizes)


def prequential(learner: Any, stream: Iterable[tuple[Any, Any]]) -> Prequential:
    """Test, then train: predict each batch (x, y) of a stream before it is learned.

    learner: has `predict(x)`, which gives labels `[B]` or probabilities `[B, C]`, and one of
    `update(x, y)` (the exact filter), `partial_fit(x, y)` (scikit-learn) and `learn(x, y)`. The
    first batch is learned without a prediction. A classifier of scikit-learn that must be told its
    classes learns a batch of its own before: `learner.partial_fit(x, y, classes=classes)`.

    stream: batches (x, y) with class labels y `[B]`.

    >>> import torch, orderless as ol
    >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> head = ol.ExactHead(ol.features.RandomReLU(4, 32), classes=2)
    >>> result = prequential(head, zip(x.split(50), y.split(50)))
    >>> bool(result.accuracy > 0.9), len(result.curve)
    (True, 9)
    """
    names = ("update", "partial_fit", "learn")
    learn = next((getattr(learner, name) for name in names if hasattr(learner, name)), None)
    if learn is None or not hasattr(learner, "predict"):
        raise TypeError(
            f"a learner needs predict(x) and one of {', '.join(names)}; "
            f"{type(learner).__name__} lacks them"
        )
    if isinstance(stream, tuple | list) and any(isinstance(part, _ARRAYS) for part in stream):
        raise TypeError(
            f"a stream is an iterable of batches (x, y), got a {type(stream).__name__} of arrays: "
            "split them, zip(x.split(100), y.split(100)), or wrap one batch as [(x, y)]"
        )
    samples, right, sizes = [], [], []
    learned = 0
    for x, y in stream:
        labels = _array(y)
        if labels.dtype.kind == "f":
            raise ValueError(
                "y must hold class labels, whose right predictions are counted, got "
                f"{labels.dtype}: give whole numbers or texts"
            )
        if learned:
            predicted = _array(learner.predict(x))
            # one column holds the probabilities, all 1, of the only class so far
            if predicted.ndim == 2 and (predicted.shape[1] > 1 or (predicted == 1).all()):
                predicted = predicted.argmax(axis=1)
            if predicted.shape != labels.shape:
                raise ValueError(
                    f"there are {len(labels)} labels and predictions of shape {predicted.shape}"
                )
            samples.append(learned)
            right.append(int((predicted == labels).sum()))
            sizes.append(len(labels))
        learn(x, y)
        learned += len(y)
    return Prequential(*[np.array(part, dtype=np.int64) for part in (samples, right, sizes)])


def _array(values: Any) -> NDArray[Any]:
    """A numpy array, also of a tensor that is on a GPU or requires gradients."""
    return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
