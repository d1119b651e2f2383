"""`order_sensitivity`: train a learner in many orders with many seeds, and compare the scores.

    accuracy = fraction of right labels     R^2 = 1 - mean (f - y)^2 / Var y, at least -1

Chance is the score of the best constant answer.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..errors import UserError
from ..io import digest, load, save
from .courses import Course, LearnerError, Order, course_of_rows, course_of_tasks
from .result import OrderSensitivity, WorstOrder

LOWEST = -1.0  # R^2 has no lower bound: a run that diverges would dominate all averages
Record = dict[str, Any]  # a finished run: scores of all test sets, and a hash of what was predicted


def order_sensitivity(
    learner: Any,
    data: Any,
    y: ArrayLike | None = None,
    *,
    groups: ArrayLike | None = None,
    orders: int = 10,
    seeds: int = 3,
    order_seed: int = 0,
    search: int = 0,
    rates: Sequence[float] = (),
    name: str | None = None,
    keep: str | os.PathLike[str] | None = None,
    key: str = "",
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> OrderSensitivity:
    """Measure how much the order of the data matters to a learner, and test against chance.

    `order_sensitivity(make_learner, tasks)` audits anything that learns task by task, and varies
    the order of the tasks. `order_sensitivity(estimator, X, y)` audits a scikit-learn estimator,
    and varies the order of the rows or, with `groups`, of groups of rows.

    The learner is made and trained `orders` x `seeds` times. Every run seeds the generators of
    Python, numpy and torch, gets copies of the same data, and differs from the others in the order
    and in the seed alone. Scores are the accuracies after the last task, or R^2 of values.
    `ol.audit.Decomposition` has the formulas of the variances, `ol.metrics.order_p_value` the test,
    and `OrderSensitivity.verdict` the rule by which a learner is called sensitive.

    Args:
        learner: a function that maps a seed to a new learner with `learn(x, y, task=None)` and
            `predict(x)`; see `ol.audit.from_torch`. With y, an estimator: its `random_state` is
            the seed. One with `partial_fit` learns groups one after another, another one is fitted
            to all rows, group after group.
        data: at least two of `ol.Task(x, y, x_test, y_test, name)`; with y, the rows X, of which
            one in four is held out for testing.
        y, groups: labels or values of the rows, and the group of each; without groups the rows
            come in random orders.
        orders: number of orders. The first is that of the data, the others are drawn by
            `order_seed`. All orders if there are no more: three tasks have six.
        seeds: number of seeds, 0, 1, ...; at least two.
        search: number of additional runs that search the worst order: each tries the worst order
            so far with one part moved. What is found is repeated with another seed.
        rates: two learning rates; measures how fast the effect of the order falls with the rate.
            `learner` is then called as `learner(seed, lr=rate)`, too.
        name: the learner's name in the report.
        keep: a file for finished runs; the same call computes only what is missing. Nothing in it
            tells one version of the learner from another, unless `key` does.
        key: any text that identifies the version of the learner.
        progress: called as `progress(done, total, text)` before each run.

    >>> x = torch.randn(2, 40, 3)
    >>> days = [(x[t], (x[t, :, t] > 0).long()) for t in (0, 1)]
    >>> tasks = [ol.Task(*day, *day, name=f"day {t}") for t, day in enumerate(days)]
    >>> sgd = lambda parameters: torch.optim.SGD(parameters, lr=1.0)
    >>> make_learner = ol.audit.from_torch(lambda: torch.nn.Linear(3, 2), sgd)
    >>> ol.order_sensitivity(make_learner, tasks, orders=2, seeds=2).scores.shape
    (2, 2, 2)
    >>> from sklearn.naive_bayes import BernoulliNB
    >>> x, y = days[0][0].numpy(), days[0][1].numpy()
    >>> ol.order_sensitivity(BernoulliNB(), x, y, orders=4).verdict  # it counts
    'none'
    """
    for count, value in (("orders", orders), ("seeds", seeds)):
        if not isinstance(value, int | np.integer) or value < 2:
            raise UserError(
                f"{count} must be an integer of at least 2, got {value!r}: with fewer, an effect "
                "of the order cannot be distinguished from chance"
            )
    if y is None:
        course = course_of_tasks(data, orders, order_seed)
        name = name or getattr(learner, "__name__", "learner").strip("<>")
    else:
        course = course_of_rows(learner, data, y, groups, orders, order_seed)
        name = name or type(learner).__name__
    if len(course.orders) < 2:
        raise UserError(f"an audit needs at least two tasks or groups, got {course.parts}")
    kept: dict[str, Record] = load(keep)["runs"] if keep and os.path.exists(keep) else {}
    total = len(course.orders) * seeds + search
    done = 0

    def run(order: Order, seed: int) -> Record:
        nonlocal done
        run_key = f"{name} {key} {course.content} {order} {seed}"
        if run_key not in kept:
            progress(done, total, f"seed {seed}, {course.name_of(order)}")
            kept[run_key] = _train_and_grade(course, learner, order, seed)
            if keep:
                save(keep, {"runs": kept})
        done += 1
        return kept[run_key]

    runs = [[run(order, seed) for order in course.orders] for seed in range(seeds)]
    scores = np.array([[each["scores"] for each in row] for row in runs])
    known = dict(zip(course.orders, scores[0].mean(axis=1).tolist(), strict=True))
    return OrderSensitivity(
        name=name,
        tasks=course.tests,
        orders=[course.name_of(order) for order in course.orders],
        scores=scores,
        bits=np.array([[each["bits"] for each in row] for row in runs]),
        compared="predicted labels" if runs[0][0]["labels"] else "bits",
        score="R^2" if course.targets[0].dtype.kind == "f" else "accuracy",
        chance=chance(course.targets),
        digest=digest([course.content, course.orders])[:16],
        worst=_search(run, course, known, search) if search else None,
        slope=_slope(course, learner, rates) if rates else None,
    )


def _train_and_grade(course: Course, learner: Any, order: Order, seed: int) -> Record:
    predictions, compared = course.run(learner, order, seed)
    pairs = zip(predictions, course.targets, strict=True)
    return {
        "scores": [grade(given, y) for given, y in pairs],
        "bits": digest([torch.tensor(given).double() for given in compared])[:16],
        "labels": course.targets[0].dtype.kind != "f" and compared[0].ndim == 1,
    }


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


def _search(
    run: Callable[[Order, int], Record], course: Course, known: dict[Order, float], budget: int
) -> WorstOrder:
    """Search the worst order with seed 0, given the scores of some, and repeat it with seed 1.

    The next order to try is the worst one so far with one of its parts moved elsewhere, or the next
    worst one if all such orders were tried.
    """
    if len(course.parts) > len(course.orders[0]):
        raise UserError("search needs tasks or groups to reorder")
    generator = np.random.default_rng(0)
    for _ in range(budget - 1):
        untried = _untried(known)
        if not untried:
            break
        order = untried[generator.integers(len(untried))]
        known[order] = float(np.mean(run(order, 0)["scores"]))
    worst = min(known, key=known.__getitem__)
    again = float(np.mean(run(worst, 1)["scores"]))
    return WorstOrder(course.name_of(worst), known[worst], again)


def _untried(known: dict[Order, float]) -> list[Order]:
    """The orders one move away from the worst order that has some untried ones."""
    for order in sorted(known, key=known.__getitem__):
        untried = [near for near in _moves(order) if near not in known]
        if untried:
            return untried
    return []


def _moves(order: Order) -> Iterator[Order]:
    """All orders that differ by moving one part."""
    for part in order:
        rest = [other for other in order if other != part]
        for place in range(len(order)):
            yield (*rest[:place], part, *rest[place:])


def _slope(course: Course, learner: Any, rates: Sequence[float]) -> float | None:
    """The log-log slope of the variance of predictions over orders, at two learning rates.

    Two orders of two small steps of rate h differ by

        h^2 (H_1 g_2 - H_2 g_1) + O(h^3)            plain SGD
        O(h)                                        with momentum, Adam, RMSprop

    because momentum and moving averages give the last steps another weight than the first. The
    variance therefore falls as h^4 or as h^2. The law is that of small rates: where each task is
    learned to the end, it does not hold. None if the order has no effect at one of the rates.
    """
    if len(rates) != 2 or min(rates) <= 0 or rates[0] == rates[1]:
        raise UserError(f"rates must be two different learning rates above 0, got {rates}")
    variances = []
    for rate in rates:
        at_rate = partial(learner, lr=rate)
        runs = [course.run(at_rate, order, 0)[0] for order in course.orders]
        outputs = np.array([np.concatenate([p.ravel() for p in run]) for run in runs])
        variances.append(float((outputs - outputs[:1]).var(axis=0).mean()))
    if 0.0 in variances:
        return None
    return math.log(variances[0] / variances[1]) / math.log(rates[0] / rates[1])
