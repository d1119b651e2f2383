"""The targets of a linear head, classes as columns of 0 and 1 or values on a grid, and its columns.

A column is a pair (task, label). Tensors hold it as one number that sorts by task, then label.
"""

from typing import Any

import torch
from torch import Tensor

from ..features.exact import check_limit, check_whole

LARGEST_WEIGHT = 16.0
Column = tuple[int, int]  # (task, label); task is -1 if heads are not distinguished by task
_LABELS = 1 << 32  # a column as a number: (task + 1) * _LABELS + label
_LARGEST_LABEL = 1 << 20
_LARGEST_TASK = (1 << 30) - 1
_UNLIKELY = 1 << 16  # labels below are not taken for ids


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
        self.count = None if count is None else check_whole("classes", count, 1, _LARGEST_LABEL)

    def __str__(self) -> str:
        return "classes"

    def check(self, y: Tensor, task: int | None) -> None:
        """Raise if this head cannot have such targets."""
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.dim() != 1:
            raise TypeError(
                f"labels must be whole numbers of shape [B], got {y.dtype} {tuple(y.shape)}; for "
                "regression use targets='values'"
            )
        if task is not None:
            check_whole("task", task, 0, _LARGEST_TASK)
        y = y.long()  # torch cannot compare unsigned integers
        end = self.count or _LARGEST_LABEL
        wrong = y[(y < 0) | (y >= end)]
        if len(wrong):
            raise ValueError(f"labels must lie between 0 and {end - 1}, got {int(wrong[0])}")

    def check_others(self, ours: Tensor, theirs: Tensor) -> None:
        """Raise if a head with our columns cannot have theirs too."""
        of_tasks = torch.cat([ours, theirs.to(ours.device)]) >= _LABELS
        if of_tasks.any() and not of_tasks.all():
            raise ValueError(
                "samples with a task and samples without a task do not fit into one head: it has "
                "either a column per (task, label) or one per label"
            )
        largest = int(theirs.remainder(_LABELS).max()) if len(theirs) else 0
        if self.count is not None and largest >= self.count:
            raise ValueError(f"there is a label {largest} there, but classes={self.count} here")

    def doubt(self, columns: Tensor) -> str | None:
        """A warning if these columns seem to be of ids, not of labels."""
        largest = int(tasks_and_labels(columns)[1].max())
        if self.count is not None or largest < _UNLIKELY or 100 * len(columns) > largest:
            return None
        return (
            f"a label is {largest}, but there are {len(columns)} different ones, and predictions "
            f"will have {largest + 1} columns: number the labels from 0 if these are ids, or say "
            "how many classes there are"
        )

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
    return 0 if task is None else (int(task) + 1) * _LABELS


class Values:
    """Floats `[B]` or `[B, K]` in multiples of `limit / 2^bits`; beyond the limit refused."""

    def __init__(self, limit: float, bits: int) -> None:
        self.limit = check_limit(limit, "target_limit")
        self.unit = limit / 2.0**bits

    def __str__(self) -> str:
        return f"values within +-{self.limit}"

    def check(self, y: Tensor, task: int | None) -> None:
        if task is not None:
            raise ValueError("targets='values' has one head for all tasks: leave task out")
        if not y.is_floating_point() or y.dim() not in (1, 2) or y.shape[-1] == 0:
            raise TypeError(f"values must be floats [B] or [B, K], got {y.dtype} {tuple(y.shape)}")
        if not y.isfinite().all() or y.abs().max() > self.limit:
            raise ValueError(
                f"targets must be finite and within +-{self.limit}: scale them, or build the "
                "head with a larger target_limit (a power of two)"
            )

    def check_others(self, ours: Tensor, theirs: Tensor) -> None:
        if len(ours) and len(theirs) and len(ours) != len(theirs):
            raise ValueError(f"targets have {len(ours)} values here and {len(theirs)} there")

    def doubt(self, columns: Tensor) -> str | None:
        """Values cannot be taken for labels."""
        return None

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


def check_tensor(name: str, value: Any) -> None:
    """Raise `TypeError` if a value is not a dense tensor of real numbers."""
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise TypeError(
            f"{name} must be a tensor, got {kind}: use torch.as_tensor, and number labels that are "
            "strings"
        )
    if value.is_complex() or value.layout != torch.strided:
        raise TypeError(f"{name} must hold real numbers, densely, got {value.dtype} {value.layout}")


def checked(
    x: Tensor, y: Tensor, weight: Any, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs `[B, ...]`, targets and weights `[B]`; a single sample may lack the first axis."""
    check_tensor("x", x)
    check_tensor("y", y)
    if y.dim() == 0:
        x, y = x.unsqueeze(0), y.unsqueeze(0)
    count, y = len(x) if x.dim() else 0, y.to(device)
    if count != len(y) or count == 0:
        raise ValueError(
            f"x has {count} samples and y has {len(y)}: give at least one, and one target each"
        )
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError("x holds values that are not finite: clean the data first")
    if weight is None:
        return x, y, torch.ones(count, dtype=torch.float64, device=device)
    try:
        weights = torch.as_tensor(weight, dtype=torch.float64, device=device)
    except (TypeError, ValueError) as error:
        raise TypeError(f"sample_weight must hold numbers, got {weight!r}") from error
    weights = weights.expand(count) if weights.dim() == 0 else weights
    if tuple(weights.shape) != (count,):
        raise ValueError(
            f"sample_weight must be [{count}], one per sample, got {tuple(weights.shape)}"
        )
    fine = (weights >= 0) & (weights <= LARGEST_WEIGHT) & (weights * 16 == (weights * 16).round())
    if not fine.all():
        raise ValueError(
            "sample_weight must lie between 0 and 16 in multiples of 1/16, which keeps sums exact, "
            f"got {weights[~fine][0].item():g}"
        )
    return x, y, weights
