"""The columns of a head, (task, label), as numbers that a tensor can hold and sort."""

from typing import Any

import torch
from torch import Tensor

Column = tuple[int, int]  # (task, label); task is -1 where heads are not told apart by task
_LABELS = 1 << 32  # a column as one number: (task + 1) * _LABELS + label


def column_numbers(columns: list[Column], device: Any = None) -> Tensor:
    """Columns as numbers that sort by task, then label."""
    numbers = [(task + 1) * _LABELS + label for task, label in columns]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def column_pairs(numbers: Tensor) -> list[Column]:
    """The opposite of `column_numbers`."""
    tasks, labels = tasks_and_labels(numbers)
    return list(zip(tasks.tolist(), labels.tolist(), strict=True))


def tasks_and_labels(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Of columns as numbers: their tasks and labels `[K]`."""
    return numbers.div(_LABELS, rounding_mode="floor") - 1, numbers.remainder(_LABELS)
