"""Grade the predictions of a learner: class labels, or values of a regression.

    accuracy = fraction of right labels     R^2 = 1 - mean (f - y)^2 / Var y, at least -1

Chance is the score of the best constant answer.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError

LOWEST = -1.0  # R^2 has no lower bound: a single run that diverges would dominate all averages


class LearnerError(UserError):
    """What the audited learner is or predicts cannot be audited; the message says why.

    >>> x, y = torch.zeros(4, 1), torch.tensor([0, 1, 0, 1])
    >>> tasks = [ol.Task(x, y, x, y, name) for name in ("monday", "tuesday")]
    >>> try:
    ...     ol.order_sensitivity(lambda seed: torch.nn.Linear(1, 2), tasks)
    ... except ol.audit.LearnerError as error:
    ...     print(str(error).split(": ")[0])
    a learner needs learn(x, y, task=None) and predict(x), got a Linear
    """


def as_array(values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double()  # numpy has no bfloat16
    return np.asarray(values)


def grade(given: NDArray[Any], y: NDArray[Any]) -> float:
    """The score of labels `[B]`, scores `[B, C]` or values `[B]`; what is not finite is wrong."""
    regression = y.dtype.kind == "f"
    if regression and given.shape == (len(y), 1):
        given = given[:, 0]
    several = not regression and given.ndim == 2 and given.shape[1] > 1
    if given.dtype.kind not in "biuf" or given.shape[:1] != y.shape or given.ndim != 1 + several:
        raise LearnerError(
            "predict must give labels [B], scores [B, C] of several classes or values [B] for "
            f"B={len(y)}, got {given.dtype} {list(given.shape)}"
        )
    if regression:
        if y.var() == 0:
            raise UserError("R^2 needs test values that differ, got equal ones")
        explained = 1.0 - float(np.square(given - y).mean() / y.var())
        return max(LOWEST, explained)  # the lowest also if it is NaN
    # a log-probability may be -inf if another class is finite
    finite = np.isfinite(given.max(axis=1) if several else given)
    labels = given.argmax(axis=1) if several else given
    if (labels[finite] % 1).any():
        raise LearnerError("predict must give integer labels [B] or scores [B, C], got fractions")
    return float((finite & (labels == y)).mean())


def chance(targets: list[NDArray[Any]]) -> float:
    """The score of the best constant answer, averaged over these test sets."""
    everything = np.concatenate(targets)
    constants = [everything.mean()] if everything.dtype.kind == "f" else np.unique(everything)
    scores = [[grade(np.full(len(y), c), y) for y in targets] for c in constants]
    return float(np.mean(scores, axis=1).max())
