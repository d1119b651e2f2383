"""The result of an audit: scores, variances, and the verdict."""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..errors import printable

LEVEL = 0.05  # of the permutation test
MEANING = {
    "none": "every order gave the same",
    "sensitive": "the order matters, and more than the seed",
    "below reseeding": "the order matters, but no more than the seed",
    "not shown": "no effect of the order was found",
    "undecided": "too few orders and seeds for any p of 0.05",
}
Array = NDArray[np.float64]
Verdict = Literal["none", "sensitive", "below reseeding", "not shown", "undecided"]


class Decomposition(NamedTuple):
    """The parts of the variance of S[seed, order, task], and the test of the order effect.

    Per task, with a_o, b_s and e_so that add up to 0 over every index,

        S[s, o] = m + a_o + b_s + e_so

        order_effect = mean_o a_o^2     seed_effect = mean_s b_s^2     interaction = mean_so e_so^2

    and the total `variance` is exactly their sum. The variances of `orderless.metrics` contain the
    interaction as well, because a run has one order and one seed:

        order_variance = mean_s Var_o S[s, o] = order_effect + interaction
        seed_variance  = mean_o Var_s S[s, o] = seed_effect  + interaction

    All are averages over tasks; `p_value` is that of `metrics.order_p_value`.

    >>> parts = ol.audit.decompose(np.array([[[0.25], [0.75]], [[0.25], [0.75]]]))
    >>> parts.order_effect, parts.seed_effect, parts.interaction
    (0.0625, 0.0, 0.0)
    """

    average: float
    variance: float
    order_variance: float
    seed_variance: float
    order_effect: float
    seed_effect: float
    interaction: float
    p_value: float


def decompose(scores: Array) -> Decomposition:
    """Variance components of scores `[S, O, T]`, and the permutation test of the order effect.

    >>> decompose(np.array([[[0.25], [0.75]], [[0.75], [0.25]]])).interaction
    0.0625
    """
    variance = metrics.variance(scores)
    order_variance = metrics.order_variance(scores)
    seed_variance = metrics.seed_variance(scores)
    return Decomposition(
        average=metrics.average(scores),
        variance=variance,
        order_variance=order_variance,
        seed_variance=seed_variance,
        order_effect=variance - seed_variance,
        seed_effect=variance - order_variance,
        interaction=order_variance + seed_variance - variance,
        p_value=metrics.order_p_value(scores),
    )


class WorstOrder(NamedTuple):
    """The worst order that a search found.

    `average` is its score with the seed of the search, `again` that with another seed, which is not
    biased by the choice.

    >>> ol.audit.WorstOrder("day 1 > day 0", average=0.5, again=0.625).again
    0.625
    """

    name: str
    average: float
    again: float


@dataclass(frozen=True, eq=False, repr=False)
class OrderSensitivity:
    """An audit: runs of a learner over S seeds and O orders of T tasks.

    `scores` `[S, O, T]` were reached after the last task, `bits` `[S, O]` are hashes of what was
    predicted, and `chance` is the score of the best constant answer. `compared` is "bits", or
    "predicted labels" of a learner that gives no scores of the classes. `digest` is a hash of the
    data in the orders that were run, equal in two processes that ran the same. `slope` is the power
    of the learning rate with which the variance of predictions over orders falls.

    `str(result)` is the report, `json()` holds every number.

    >>> scores = np.array([[[0.25], [0.75]], [[0.25], [0.75]]])
    >>> bits = np.array([["a", "b"], ["c", "d"]])
    >>> result = ol.audit.OrderSensitivity("mine", ["all"], ["0 > 1", "1 > 0"], scores, bits)
    >>> result.verdict, result.order_variance, result.seed_variance
    ('undecided', 0.0625, 0.0)
    """

    name: str
    tasks: list[str]
    orders: list[str]
    scores: Array
    bits: NDArray[np.str_]
    compared: str = "bits"
    score: str = "accuracy"
    chance: float = 0.0
    digest: str = ""
    worst: WorstOrder | None = None
    slope: float | None = None

    @cached_property
    def parts(self) -> Decomposition:
        """Order, seed and interaction variance, and the permutation test."""
        return decompose(self.scores)

    @property
    def order_variance(self) -> float:
        """mean_t mean_s Var_o S[s, o, t]."""
        return self.parts.order_variance

    @property
    def seed_variance(self) -> float:
        """mean_t mean_o Var_s S[s, o, t]."""
        return self.parts.seed_variance

    @property
    def ignores_seed(self) -> bool:
        """Whether every seed gave bit-identical predictions in every order."""
        return bool((self.bits == self.bits[:1]).all())

    @property
    def p_value(self) -> float | None:
        """Of "the order has no effect"; None if seeds or orders make no difference at all."""
        return None if self.ignores_seed or self.verdict == "none" else self.parts.p_value

    @property
    def verdict(self) -> Verdict:
        """What the runs show.

        - `"none"`: every order gave the same predictions to the bit, with every seed.
        - `"sensitive"`: the scores vary more between orders than between seeds (each corrected for
          its number), *and* the permutation test rejects "no effect" at 5%. For a learner that
          ignores its seed: the scores vary at all.
        - `"below reseeding"`: the test rejects, but the seed matters as much or more.
        - `"not shown"`: the test does not reject.
        - `"undecided"`: there are too few runs for the test to reject.
        """
        if (self.bits == self.bits[:, :1]).all():
            return "none"
        if self.ignores_seed:
            return "sensitive" if self.order_variance > 0 else "not shown"
        seeds, orders, _ = self.scores.shape
        if LEVEL * math.factorial(orders) ** (seeds - 1) < 1:  # no p-value can be smaller
            return "undecided"
        if self.parts.p_value > LEVEL:
            return "not shown"
        # a population variance of k values is (k - 1)/k of the true one on average
        between_orders = self.order_variance * orders / (orders - 1)
        between_seeds = self.seed_variance * seeds / (seeds - 1)
        return "sensitive" if between_orders > between_seeds else "below reseeding"

    def __str__(self) -> str:
        seeds, orders, tasks = self.scores.shape
        averages = metrics.order_averages(self.scores)
        lowest = int(averages.argmin())
        same = f" {self.compared}" if self.verdict == "none" else ""
        rows: dict[str, object] = {
            "verdict": f"{self.verdict}: {MEANING[self.verdict]}{same}",
            self.score: f"{self._score(self.parts.average)}, the best constant answer "
            f"{self._score(self.chance)}",
            "best order": self._score(averages.max()),
            "worst order": f"{self._score(averages[lowest])}, {self.orders[lowest]}",
            "order sd": f"{self._deviation(self.order_variance)} on a test set",
            "seed sd": self._deviation(self.seed_variance),
        }
        if self.p_value is not None:
            rows["p"] = f"{self.p_value:.4f}"
        if self.ignores_seed:
            rows["seeds"] = f"all gave the same {self.compared}: there is nothing to compare with"
        if self.worst:
            rows["worst found"] = (
                f"{self._score(self.worst.average)}, with another seed "
                f"{self._score(self.worst.again)}, {self.worst.name}"
            )
        if self.slope is not None:
            rows["rate slope"] = f"{self.slope:.2f} (small rates: 4 for SGD, 2 for momentum, Adam)"
        rows["orders run"] = self.digest
        title = (
            f"Order sensitivity of {self.name}: {orders} orders x {seeds} seeds, test sets: {tasks}"
        )
        lines = [title, *(f"  {name:13}{value}" for name, value in rows.items())]
        return "\n".join(map(printable, lines))

    def _score(self, value: float) -> str:
        """An accuracy is a share; R^2 is a number, which may be negative."""
        return f"{value:.1%}" if self.score == "accuracy" else f"{value:.3f}"

    def _deviation(self, variance: float) -> str:
        deviation = math.sqrt(variance)
        return f"{100 * deviation:.2g} points" if self.score == "accuracy" else f"{deviation:.2g}"

    def __repr__(self) -> str:
        return f"OrderSensitivity({self.name!r}, verdict={self.verdict!r})"

    def json(self) -> str:
        """All numbers."""
        numbers = {
            **self.parts._asdict(),
            **vars(self),
            "worst": self.worst and self.worst._asdict(),
            "verdict": self.verdict,
            "p_value": self.p_value,
        }
        del numbers["parts"]  # the cached property
        return json.dumps(numbers, default=np.ndarray.tolist, indent=1, allow_nan=False)
