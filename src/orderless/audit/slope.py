r"""How the effect of the order on predictions falls with the learning rate.

Two orders of two small steps of rate h differ by

    h^2 (H_1 g_2 - H_2 g_1) + O(h^3)            plain SGD
    O(h)                                        with momentum, Adam, RMSprop

because momentum and moving averages give the last steps another weight than the first. The variance
over orders of a prediction therefore falls as h^4 or as h^2: at half the rate a sixteenth or a
quarter is left. The law is that of small rates: where each task is learned to the end, it does not
hold.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..tasks import Task
from .answers import LearnerError
from .session import Session
from .tasks import TaskData
from .trials import Record, Trial, raw_predictions

SAMPLES = 200  # of each task's test samples: an average over predictions needs no more


@dataclass(frozen=True)
class RateSlope:
    """The variance over orders of the predictions at two learning rates.

    >>> import orderless as ol
    >>> slope = ol.audit.RateSlope(rates=(0.1, 0.05), variances=(1.6e-3, 1e-4))
    >>> round(slope.slope, 9)
    4.0
    """

    rates: tuple[float, ...]
    variances: tuple[float, ...]

    @property
    def slope(self) -> float | None:
        """The log-log slope of the variance; None if a variance is 0."""
        if 0.0 in self.variances:
            return None
        high, low = self.variances
        return math.log(high / low) / math.log(self.rates[0] / self.rates[1])

    def __str__(self) -> str:
        pairs = zip(self.rates, self.variances, strict=True)
        measured = " and ".join(f"{variance:.2g} at rate {rate:g}" for rate, variance in pairs)
        said = f"The variance of predictions over orders is {measured}"
        if self.slope is None:
            return f"{said}."
        return (
            f"{said}: it falls with the rate to the power {self.slope:.2f} (at small rates 4 for "
            "plain SGD, 2 for momentum and Adam)."
        )


def rate_slope(
    make_learner: Callable[..., Any],
    tasks: Sequence[Task],
    rates: Sequence[float],
    *,
    orders: int = 5,
    order_seed: int = 0,
) -> RateSlope:
    """Measure how the variance of predictions over orders falls with the learning rate.

    Args:
        make_learner: `make_learner(seed, lr=rate)` gives a new learner, whose `predict` returns
            scores `[B, C]` or values `[B]`. It is trained with seed 0.
        tasks, order_seed: as for `order_sensitivity`.
        rates: two learning rates.
        orders: number of orders.

    >>> import torch, orderless as ol
    >>> x, y = torch.randn(2, 40, 3), torch.randint(2, (2, 40))
    >>> tasks = [ol.Task(x[t], y[t], x[t], y[t]) for t in (0, 1)]
    >>> def make_learner(seed, lr):
    ...     sgd = lambda parameters: torch.optim.SGD(parameters, lr=lr)
    ...     return ol.audit.from_torch(lambda: torch.nn.Linear(3, 2), sgd)(seed)
    >>> 3.9 < ol.audit.rate_slope(make_learner, tasks, (0.1, 0.05)).slope < 4.1
    True
    """
    check(rates)
    data = TaskData(tasks, orders, order_seed)
    session = Session(data, 0, lambda done, total, text: None, out=None, key="")
    return measure(session, "the learner", make_learner, rates)


def check(rates: Sequence[float]) -> None:
    if len(rates) != 2 or min(rates) <= 0 or rates[0] == rates[1]:
        raise ValueError(f"rates must be two different learning rates above 0, got {list(rates)}")


def measure(
    session: Session, name: str, make_learner: Callable[..., Any], rates: Sequence[float]
) -> RateSlope:
    """The slope from trials of a session, which are kept like any other."""
    variances = []
    for rate in rates:
        learner = partial(make_learner, lr=rate)
        trials = [Trial(f"{name} at rate {rate:g}", learner, o, 0) for o in session.data.orders]
        records = [session.record(trial, partial(_outputs, session, trial)) for trial in trials]
        outputs = np.array([record["outputs"] for record in records])  # [O, B]
        variances.append(float((outputs - outputs[:1]).var(axis=0).mean()))
    return RateSlope(tuple(rates), tuple(variances))


def _outputs(session: Session, trial: Trial) -> Record:
    """The raw predictions after the last task."""
    asks = [0] * (session.data.steps - 1) + [1]
    [predictions] = raw_predictions(session.data, trial, asks)
    values = np.concatenate([given[:SAMPLES].reshape(-1) for given in predictions])
    if values.dtype.kind != "f":
        raise LearnerError(
            "the slope needs predictions that change with the learning rate, scores [B, C] or "
            f"values [B]: {trial.name!r} predicts labels"
        )
    return {"outputs": values.astype(np.float64).tolist()}
