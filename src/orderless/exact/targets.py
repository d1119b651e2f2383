"""The targets of a linear head, classes as columns of 0 and 1 or values on a grid, and its columns.

A column is a pair (task, label). Tensors hold it as one number that sorts by task, then label.
"""

import operator
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from ..features.exact import check_limit

Column = tuple[int, int]  # (task, label); task is -1 if heads are not distinguished by task
_LABELS = 1 << 32  # a column as a number: (task + 1) * _LABELS + label
_LARGEST_LABEL = 1 << 20
_LARGEST_TASK = 1 << 30


def column_numbers(columns: list[Column], device: Any = None) -> Tensor:
    numbers = [(task + 1) * _LABELS + label for task, label in columns]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def column_pairs(numbers: Tensor) -> list[Column]:
    """The inverse of `column_numbers`."""
    tasks, labels = tasks_and_labels(numbers)
    return list(zip(tasks.tolist(), labels.tolist(), strict=True))


def tasks_and_labels(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The tasks and the labels `[K]` of columns as numbers."""
    return numbers.div(_LABELS, rounding_mode="floor") - 1, numbers.remainder(_LABELS)


class Classes:
    """Integer labels; a column per label, or per (task, label) if updates give a task."""

    unit = 1.0

    def __init__(self, count: int | None) -> None:
        if count is not None and (not isinstance(count, SupportsIndex) or count < 1):
            raise ValueError(f"classes must be a whole number of at least 1, got {count!r}")
        self.count = None if count is None else operator.index(count)

    def __str__(self) -> str:
        return "classes"

    def check(self, y: Tensor, task: int | None, columns: Tensor) -> None:
        """Raise if this head cannot have such targets."""
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.dim() != 1:
            raise TypeError(
                f"labels must be whole numbers of shape [B], got {y.dtype} {tuple(y.shape)}; for "
                "regression use targets='values'"
            )
        whole = isinstance(task, SupportsIndex) and not isinstance(task, bool)
        if task is not None and not (whole and 0 <= task < _LARGEST_TASK):
            end = _LARGEST_TASK - 1
            raise ValueError(f"task must be a whole number between 0 and {end}, or None: {task!r}")
        y, end = y.long(), self.count or _LARGEST_LABEL  # torch cannot compare unsigned integers
        wrong = y[(y < 0) | (y >= end)]
        if len(wrong):
            raise ValueError(f"labels must lie between 0 and {end - 1}, got {int(wrong[0])}")
        if len(columns) and (int(columns[0]) >= _first(0)) != (task is not None):
            was, now = ("with", "without") if task is None else ("without", "with")
            raise ValueError(
                f"earlier updates came {was} a task and this one {now}: the head has either a "
                "column per (task, label) or one per label"
            )

    def check_others(self, ours: list[Column], theirs: list[Column]) -> None:
        """Raise if this head cannot have the columns of another."""
        largest = max((label for _, label in theirs), default=-1)
        if self.count is not None and largest >= self.count:
            raise ValueError(f"there is a label {largest} there, but classes={self.count} here")

    def columns(self, y: Tensor, task: int | None) -> Tensor:
        """The numbers of the columns that these labels need, ascending."""
        return y.long().unique() + _first(task)

    def encode(self, y: Tensor, task: int | None, columns: Tensor) -> Tensor:
        """The index of every sample's column: `[B]`."""
        return torch.searchsorted(columns, y.long() + _first(task))

    def labels(self, seen: Tensor) -> int:
        """The number of labels of a prediction, given those seen; 0 if it is not known yet."""
        return self.count or (int(seen.max()) + 1 if len(seen) else 0)


def _first(task: int | None) -> int:
    """The number of a task's column for label 0."""
    return int(column_numbers([(-1 if task is None else task, 0)]))


class Values:
    """Floats `[B]` or `[B, K]` in multiples of `limit / 2^bits`; beyond the limit refused."""

    def __init__(self, limit: float, bits: int) -> None:
        check_limit(limit, "target_limit")
        self.limit, self.unit = limit, limit / 2.0**bits

    def __str__(self) -> str:
        return f"values within +-{self.limit}"

    def check(self, y: Tensor, task: int | None, columns: Tensor) -> None:
        if task is not None:
            raise ValueError("targets='values' has one head for all tasks: leave task out")
        if not y.is_floating_point() or y.dim() not in (1, 2):
            raise TypeError(f"values must be floats [B] or [B, K], got {y.dtype} {tuple(y.shape)}")
        if not y.isfinite().all() or (y.numel() and y.abs().max() > self.limit):
            raise ValueError(
                f"targets must be finite and within +-{self.limit}: scale them, or build the "
                "filter with a larger target_limit (a power of two)"
            )
        before, now = len(columns), len(self.columns(y, task))
        if before and before != now:
            raise ValueError(f"targets had {before} values per sample before, now {now}")

    def check_others(self, ours: list[Column], theirs: list[Column]) -> None:
        if ours and theirs and ours != theirs:
            raise ValueError(f"targets have {len(ours)} values here and {len(theirs)} there")

    def columns(self, y: Tensor, task: int | None) -> Tensor:
        width = 1 if y.dim() == 1 else y.shape[1]
        return column_numbers([(-1, k) for k in range(width)], y.device)

    def encode(self, y: Tensor, task: int | None, columns: Tensor) -> Tensor:
        """The values on their grid: `[B, K]`, float64."""
        return (y.double().reshape(len(y), -1) / self.unit).round() * self.unit


def label_table(labels: Tensor, count: int) -> Tensor:
    """The columns of each of `count` labels: `[count, most]`, padded with `len(labels)`."""
    ascending, order = labels.sort(stable=True)
    first = torch.searchsorted(ascending, ascending)
    rank = torch.arange(len(labels), device=labels.device) - first  # among columns of its label
    table = torch.full((count, int(rank.max()) + 1), len(labels), device=labels.device)
    table[ascending, rank] = order
    return table


def by_label(scores: Tensor, table: Tensor, across: str) -> Tensor:
    """Logits `[N, B, C]` of labels from scores `[N, B, K]` of columns; -inf without a column."""
    scores = scores - scores.amax(2, keepdim=True)
    nothing = torch.full_like(scores[..., :1], -torch.inf)  # the padding of the table
    tasks = torch.cat([scores, nothing], dim=2)[..., table]  # [N, B, C, tasks]
    return tasks.amax(-1) if across == "max" else tasks.logsumexp(-1)
