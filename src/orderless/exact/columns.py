"""The head's columns: a pair (task, label) each; task is -1 if heads are not distinguished by task.

Tensors hold a column as one number that sorts by task, then label.
"""

from typing import Any

import torch
from torch import Tensor

Column = tuple[int, int]  # (task, label)
LABELS = 1 << 32  # a column as a number: (task + 1) * LABELS + label


def column_numbers(columns: list[Column], device: Any = None) -> Tensor:
    numbers = [(task + 1) * LABELS + label for task, label in columns]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def column_pairs(numbers: Tensor) -> list[Column]:
    """The inverse of `column_numbers`."""
    tasks, labels = tasks_and_labels(numbers)
    return list(zip(tasks.tolist(), labels.tolist(), strict=True))


def tasks_and_labels(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The tasks and the labels `[K]` of columns as numbers."""
    return numbers.div(LABELS, rounding_mode="floor") - 1, numbers.remainder(LABELS)


def check_columns(columns: Tensor) -> None:
    """Raise `ValueError` if some have a task and others have none."""
    of_tasks = columns >= LABELS
    if of_tasks.any() and not of_tasks.all():
        raise ValueError(
            "samples with a task and samples without a task do not fit into one head: it has "
            "either a column per (task, label) or one per label"
        )


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
