"""Answers of a learner: class labels, or values of a regression.

    accuracy = fraction of right labels     R^2 = 1 - mean (f - y)^2 / Var y, at least -1

Chance is the score of the best constant answer. The difference of two sets of answers f and g is
the fraction of samples with different labels, or the root mean square of f - g in standard
deviations of y.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError

Array = NDArray[np.float64]
Answers = NDArray[Any]  # `[B]`, int64 labels or float64 values
LOWEST = -1.0  # R^2 has no lower bound: a single run that diverges would dominate all averages


class LearnerError(UserError):
    """The audited learner failed or is not a learner; the message names the place."""


def as_array(values: Any) -> NDArray[Any]:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def read_answers(name: str, given: NDArray[Any], y: NDArray[Any]) -> tuple[Answers, bool]:
    """The answers to compare with y, and whether all of them are finite."""
    fits = given.ndim in (1, 2) and len(given) == len(y) and given.dtype.kind in "biuf"
    if y.dtype.kind == "f":
        if not fits or given.size != len(y):
            raise LearnerError(
                f"predict of {name!r} must give values [B] for B={len(y)}, got {given.dtype} "
                f"{list(given.shape)}"
            )
        # clip values that lie beyond the test values by more than their range
        low = 2 * y.min() - y.max()
        high = 2 * y.max() - y.min()
        values = given.reshape(-1).astype(np.float64)
        return np.nan_to_num(values, nan=high).clip(low, high), bool(np.isfinite(values).all())
    if not fits or given.shape[1:] in ((0,), (1,)):
        raise LearnerError(
            f"predict of {name!r} must give labels [B] or scores [B, C] of at least two classes "
            f"for B={len(y)}, got {given.dtype} {list(given.shape)}"
        )
    if given.ndim == 2:  # log-probabilities may be -inf if another class is finite
        comparable = ~np.isnan(given).any(axis=1) & np.isfinite(given.max(axis=1))
        return np.where(comparable, given.argmax(axis=1), -1), bool(comparable.all())
    finite = np.isfinite(given)
    labels = np.where(finite, given, -1)  # -1 is never right
    fractions = labels[labels != labels.astype(np.int64)]
    if len(fractions):
        raise LearnerError(
            f"predict of {name!r} must give integer labels [B] or scores [B, C], got labels such "
            f"as {fractions[0]}"
        )
    return labels.astype(np.int64), bool(finite.all())


def score(answers: Answers, y: NDArray[Any]) -> float:
    """Accuracy, or R^2."""
    if y.dtype.kind != "f":
        return float((answers == y).mean())
    return max(LOWEST, 1.0 - float(np.square(answers - y).mean() / y.var()))


def chance(targets: Sequence[NDArray[Any]]) -> float:
    """The score of the best constant answer, averaged over these test sets."""
    everything = np.concatenate(targets)
    constants = [everything.mean()] if everything.dtype.kind == "f" else np.unique(everything)
    return max(float(np.mean([score(np.full(len(y), c), y) for y in targets])) for c in constants)


def differences(answers: Answers, y: NDArray[Any]) -> Array:
    """`[K, K]`: the difference of each two of K sets of answers `[K, B]`."""
    if y.dtype.kind != "f":
        return np.stack([(answers != row).mean(axis=1) for row in answers])
    return np.stack([np.sqrt(np.square(answers - row).mean(axis=1) / y.var()) for row in answers])
