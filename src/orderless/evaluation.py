"""Prequential evaluation: every batch of a stream is a test first, then a lesson."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Prequential:
    """What a learner knew before it saw each batch.

    `samples` `[T]`: how many had been learned when batch t was predicted; `right` `[T]` and
    `sizes` `[T]`: how many predictions of it were right, and of how many.
    """

    samples: NDArray[np.int64]
    right: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def accuracy(self) -> float:
        """Of all predictions."""
        return float(self.right.sum() / self.sizes.sum()) if len(self.sizes) else float("nan")

    @property
    def curve(self) -> NDArray[np.float64]:
        """The accuracy so far after every batch `[T]`."""
        return self.right.cumsum() / self.sizes.cumsum()

    def recent(self, batches: int) -> NDArray[np.float64]:
        """The accuracy over the last `batches` batches at every one `[T]`."""
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
    first batch is only learned, since nothing is known before.

    >>> import torch, orderless as ol
    >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> rb = ol.RaoBlackwellizedFilter(ol.features.RandomReLU(4, 32), classes=2)
    >>> result = prequential(rb, zip(x.split(50), y.split(50)))
    >>> bool(result.accuracy > 0.9), len(result.curve)
    (True, 9)
    """
    names = ("update", "partial_fit", "learn")
    learn = next((getattr(learner, name) for name in names if hasattr(learner, name)), None)
    if learn is None or not hasattr(learner, "predict"):
        raise TypeError(
            f"a learner has predict(x) and one of {', '.join(names)}, but "
            f"{type(learner).__name__} has not"
        )
    samples, right, sizes = [], [], []
    learned = 0
    for x, y in stream:
        if learned:
            predicted, labels = np.asarray(learner.predict(x)), np.asarray(y)
            if predicted.ndim == 2:
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
