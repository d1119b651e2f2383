"""One run, ``R[i, j]``: the score of task *identity* j after i tasks, row 0 before the first.

R has shape ``[T + 1, T]``; ``order[k]`` is the identity of the task at place k, so
``pos(j) = order.index(j) + 1`` is the row right after task j was learned.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def _score_matrix(matrix: ArrayLike) -> Array:
    rows = np.asarray(matrix, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] < 1 or rows.shape[0] != rows.shape[1] + 1:
        raise ValueError(f"R must have shape [T + 1, T], got {list(rows.shape)}")
    if not np.isfinite(rows).all():
        raise ValueError("R holds values that are not finite")
    return rows


def _in_order(matrix: ArrayLike, order: Sequence[int]) -> Array:
    """R with its columns in the order of learning: the task of column k is learned in row k + 1."""
    rows, identities = _score_matrix(matrix), [int(task) for task in order]
    tasks = rows.shape[1]
    if sorted(identities) != list(range(tasks)):
        raise ValueError(f"order must hold each of 0..{tasks - 1} once, got {identities}")
    return rows[:, identities]


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else float("nan")


def final_average(matrix: ArrayLike) -> float:
    """mean_j R[T, j]."""
    return float(_score_matrix(matrix)[-1].mean())


def backward_transfer(matrix: ArrayLike, order: Sequence[int]) -> float:
    """BWT = mean over tasks j not last of R[T, j] - R[pos(j), j]; NaN with one task."""
    rows = _in_order(matrix, order)
    return _mean((rows[-1] - rows[1:].diagonal())[:-1])


def forward_transfer(matrix: ArrayLike, order: Sequence[int]) -> float:
    """FWT = mean over tasks j not first of R[pos(j) - 1, j] - R[0, j]; NaN with one task."""
    rows = _in_order(matrix, order)
    return _mean((rows.diagonal() - rows[0])[1:])


def just_learned(matrix: ArrayLike, order: Sequence[int]) -> float:
    """mean_j R[pos(j), j]: the score on each task right after it was learned."""
    return _mean(_in_order(matrix, order)[1:].diagonal())


def forgetting(matrix: ArrayLike, order: Sequence[int]) -> float:
    """mean over tasks j not last of max_{i<T} R[i, j] - R[T, j]; NaN with one task.

    The last task cannot have been forgotten yet: counting it would mix in how much it was just
    learned.
    """
    rows = _in_order(matrix, order)
    return _mean((rows[:-1].max(axis=0) - rows[-1])[:-1])


def first_minus_last(matrix: ArrayLike, order: Sequence[int]) -> float:
    """mean over tasks j not last of R[pos(j), j] - R[T, j] = -BWT: loss since it was learned."""
    return -backward_transfer(matrix, order)
