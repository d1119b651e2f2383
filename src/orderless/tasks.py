"""What a learner is tested on: tasks with test data of their own, and streams.

Every batch of a stream is predicted first and learned afterwards (`prequential`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .ensemble import find_device

_ARRAYS = Tensor, np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """One task: inputs x [n, ...], labels y [n] in 0..C-1, and the same for testing.

    y may hold floats instead, the values of a regression, for `order_sensitivity`.

    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    >>> Task(x, y, x[:2], y[:2], name="Monday")
    Task('Monday', 4 training and 2 test samples of shape [2])
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    name: str = ""

    def __post_init__(self) -> None:
        for x, y, part in ((self.x, self.y, "training"), (self.x_test, self.y_test, "test")):
            whose = f"{part} data of task {self.name!r}"
            for value in (x, y):
                if not isinstance(value, Tensor):
                    kind = type(value).__name__
                    raise TypeError(
                        f"inputs and labels must be tensors, got {kind} in the {whose}: use "
                        "torch.as_tensor"
                    )
            values = y.is_floating_point()
            if y.dim() != 1 or y.is_complex() or y.dtype == torch.bool or values != self.values:
                raise ValueError(
                    "labels must be integers of shape [n], or all of them floats (a regression), "
                    f"got {y.dtype} {list(y.shape)} in the {whose}"
                )
            if values and not y.isfinite().all():
                raise ValueError(f"values must be finite, got NaN or infinity in the {whose}")
            rows = len(x) if x.dim() else 0
            if rows != len(y) or not rows:
                raise ValueError(
                    f"there must be as many inputs as labels, and at least one, got {rows} "
                    f"inputs and {len(y)} labels in the {whose}"
                )
            if not values and int(y.min()) < 0:
                raise ValueError(f"labels must be 0 or larger, got {int(y.min())} in the {whose}")

    def __repr__(self) -> str:
        counts = f"{len(self.x)} training and {len(self.x_test)} test samples"
        return f"Task({self.name!r}, {counts} of shape {list(self.x.shape[1:])})"

    @property
    def values(self) -> bool:
        """Whether y holds values of a regression."""
        return self.y.is_floating_point()

    def to(self, device: torch.device | str) -> Task:
        """The same task with its data on `device`."""
        where = find_device(device)
        x, y, x_test, y_test = (p.to(where) for p in (self.x, self.y, self.x_test, self.y_test))
        return Task(x, y, x_test, y_test, self.name)


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
        so_far = np.stack([self.right, self.sizes]).cumsum(axis=1)
        before = np.pad(so_far, ((0, 0), (batches, 0)))[:, : len(self.sizes)]
        right, sizes = so_far - before
        return right / sizes


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
        labels = as_array(y)
        if labels.dtype.kind == "f":
            raise ValueError(
                "y must hold class labels, whose right predictions are counted, got "
                f"{labels.dtype}: give whole numbers or texts"
            )
        if learned:
            predicted = as_array(learner.predict(x))
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


def as_array(values: Any) -> NDArray[Any]:
    """A numpy array, also of a tensor that is on a GPU, requires gradients or is of bfloat16."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    return np.asarray(values)
