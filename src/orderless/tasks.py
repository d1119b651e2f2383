"""One task: its training and test data."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .ensemble import find_device


class SizedDataset(Protocol):
    """Anything with a length whose items are (x, y), such as a map-style torch Dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


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


def task_from_datasets(
    training: SizedDataset, test: SizedDataset, *, name: str = "", relabel: bool = False
) -> Task:
    """Read two datasets, or pairs (x, y) of tensors or arrays, into one task.

    With `relabel`, the labels in ascending order become 0, 1, ...
    """
    (x, y), (x_test, y_test) = _read(training), _read(test)
    if relabel:
        known = torch.cat([y, y_test]).unique()
        y, y_test = torch.searchsorted(known, y), torch.searchsorted(known, y_test)
    return Task(x, y, x_test, y_test, name)


def is_array(value: object) -> bool:
    """Whether `value` is a tensor or array, that is, all inputs or labels at once."""
    return isinstance(value, Tensor | np.ndarray)


def _read(dataset: SizedDataset) -> tuple[Tensor, Tensor]:
    if isinstance(dataset, tuple | list) and len(dataset) == 2 and is_array(dataset[0]):
        x, y = dataset
        kind = y.dtype if is_array(y) else type(y).__name__
        if "int" not in str(kind):  # `relabel` would rank other numbers
            raise ValueError(
                f"labels must be integers of shape [n], got {kind}: number them from 0"
            )
        return torch.as_tensor(x), torch.as_tensor(y).long()  # torch cannot sort all of them
    if not len(dataset):
        raise ValueError(f"a dataset must have at least one sample, got an empty {type(dataset)}")
    items = [dataset[index] for index in range(len(dataset))]
    # np.array accepts more than as_tensor, such as PIL images
    x = [x if isinstance(x, Tensor) else torch.from_numpy(np.array(x)) for x, _ in items]
    try:
        return torch.stack(x), torch.tensor([operator.index(y) for _, y in items])
    except TypeError as error:  # int would cut off the fractions of a regression's values
        raise ValueError(f"labels must be integers: {error}; number them from 0") from None
