"""`order_sensitivity`: train a learner in many orders with many seeds, and compare the scores."""

import hashlib
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import slope
from .answers import LearnerError, chance, differences
from .orders import Order
from .result import LearnerAudit, OrderSensitivity, Tail, Tails
from .rows import RowData
from .search import search as search_orders
from .session import Session, Tell
from .tasks import TaskData
from .trials import AuditData, Trial

SMALLEST_SEARCH = 12
MOST_RUNS = 100_000


def order_sensitivity(
    learner: Any,
    data: Any,
    y: ArrayLike | None = None,
    *,
    groups: ArrayLike | None = None,
    orders: int = 10,
    seeds: int = 3,
    search: int = 0,
    compare: Mapping[str, Any] | None = None,
    rates: Sequence[float] | None = None,
    order_seed: int = 0,
    name: str | None = None,
    progress: Tell = lambda done, total, text: None,
    out: Path | str | None = None,
    key: str = "",
) -> OrderSensitivity:
    """Measure how much the order of the data matters to a learner, and test against chance.

    `order_sensitivity(make_learner, tasks)` audits anything that learns task by task, and varies
    the order of the tasks. `order_sensitivity(estimator, X, y)` audits a scikit-learn estimator,
    and varies the order of the rows or, with `groups`, of groups of rows.

    The learner is made and trained `orders` x `seeds` times. Every run seeds the generators of
    Python, numpy and torch, gets copies of the same data, and differs from the others in the order
    and in the seed alone. `predict` is called with every task's test data after each task, with its
    own generators. Scores are the accuracies after the last task, or R^2 of values.
    `decomposition.py` has the formulas of the variances and the test, `LearnerAudit.verdict` the
    rule by which a learner is called sensitive.

    Args:
        learner: a function that maps a seed to a new learner with `learn(x, y, task=None)` and
            `predict(x)`; see `ol.audit.from_torch` and `ol.audit.from_partial_fit`. With y, an
            estimator: its `random_state` is the seed. One with `partial_fit` learns groups one
            after another, another one is fitted to all rows, group after group.
        data: at least two of `ol.Task(x, y, x_test, y_test, name)`; with y, the rows X, of which
            one in four is held out for testing.
        y, groups: labels or values of the rows, and the group of each; without groups the rows
            come in random orders.
        orders: number of orders. The first is that of the data, the others are drawn by
            `order_seed`. All orders if there are no more: three tasks have six.
        seeds: number of seeds, 0, 1, ...; at least two.
        search: number of additional runs of the learner that search its worst and best order; see
            `search.py`. Both are then repeated with another seed.
        compare: others of the same kind to run beside it, {name: learner}.
        rates: two learning rates; reports how fast the effect of the order falls with the rate.
            `learner` is then called as `learner(seed, lr=rate)`, too. See `rate_slope`.
        name: the learner's name in the report.
        progress: called as `progress(done, total, text)` before each run, and once at the end.
        out: a folder for finished runs; the same call with the same folder computes only what is
            missing. Each learner and each list of tasks needs its own folder.
        key: any text that identifies the version of the learner; a folder with runs of another key
            is refused.

    >>> import torch, orderless as ol
    >>> x = torch.randn(2, 40, 3)
    >>> days = [(x[t], (x[t, :, t] > 0).long()) for t in (0, 1)]
    >>> tasks = [ol.Task(*day, *day, name=f"day {t}") for t, day in enumerate(days)]
    >>> sgd = lambda parameters: torch.optim.SGD(parameters, lr=1.0)
    >>> make_learner = ol.audit.from_torch(lambda: torch.nn.Linear(3, 2), sgd)
    >>> ol.order_sensitivity(make_learner, tasks, orders=2, seeds=2).learner.scores.shape
    (2, 2, 2)
    >>> from sklearn.naive_bayes import BernoulliNB
    >>> x, y = days[0][0].numpy(), days[0][1].numpy()
    >>> ol.order_sensitivity(BernoulliNB(), x, y, orders=4).learner.verdict  # it counts
    'none'
    """
    orders = _whole("orders", orders)
    seeds = _whole("seeds", seeds)
    if search and (search < SMALLEST_SEARCH or (y is not None and groups is None)):
        raise ValueError(
            f"search must be 0 or at least {SMALLEST_SEARCH} runs, of tasks or groups, got {search}"
        )
    everything: AuditData
    if y is None:
        own = name or getattr(learner, "__name__", "learner").strip("<>")
        if not callable(learner):
            raise LearnerError(f"a learner must be a function from a seed, got {learner!r}")
    else:
        own = name or type(learner).__name__
    learners = {own: learner, **(compare or {})}
    if own in (compare or {}):
        raise ValueError(f"two learners have the name {own!r}: give yours another name")
    most = len(learners) * orders * seeds + search
    if most > MOST_RUNS:
        raise ValueError(f"an audit has at most {MOST_RUNS:,} runs, got {most:,}")
    if rates:
        slope.check(rates)
    if y is None:
        everything = TaskData(data, orders, order_seed)
    else:
        everything = RowData(learner, data, y, groups, orders, order_seed)
    count = len(everything.orders)
    total = len(learners) * count * seeds + search + (2 * count if rates else 0)
    session = Session(everything, total, progress, out, key)
    audits = [_audit(session, label, each, seeds) for label, each in learners.items()]
    tails = _search(session, own, learner, audits[0], search) if search else None
    fall = slope.measure(session, own, learner, rates) if rates else None
    progress(total, total, "done")
    targets = everything.targets
    digests = "".join(map(everything.digest, everything.orders))
    return OrderSensitivity(
        audits[0],
        tuple(audits[1:]),
        everything.names,
        everything.orders,
        seeds,
        order_names=tuple(map(everything.order_name, everything.orders)),
        score="R^2" if targets[0].dtype.kind == "f" else "accuracy",
        chance=chance(targets),
        chance_in_task=float(np.mean([chance([test]) for test in targets])),
        samples=sum(map(len, targets)),
        digest=hashlib.sha256(digests.encode()).hexdigest()[:16],
        tails=tails,
        slope=fall,
    )


def _whole(name: str, value: Any) -> int:
    """An integer of at least 2, of any type that is one."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 2:
        raise ValueError(
            f"{name} must be an integer of at least 2, got {value!r}: with fewer, an effect of the "
            "order cannot be distinguished from chance"
        )
    return number


def _audit(session: Session, name: str, learner: Any, seeds: int) -> LearnerAudit:
    """The audit of one learner, from its runs `[S, O]`."""
    orders = session.data.orders
    trials = [Trial(name, learner, order, seed) for seed in range(seeds) for order in orders]
    runs = [session.run(trial, test_predict=trial == trials[0]) for trial in trials]

    def grid(key: str) -> NDArray[Any]:
        values = np.array([run[key] for run in runs])
        return values.reshape(seeds, len(orders), *values.shape[1:])

    y = np.concatenate(session.data.targets)
    answers = grid("answers")  # [S, O, B]
    bits = grid("bits")
    between_seeds = [differences(row, y).sum() for row in answers.swapaxes(0, 1)]
    return LearnerAudit(
        name=name,
        matrices=grid("matrix"),
        disagreement=np.mean([differences(row, y) for row in answers], axis=0),
        seed_disagreement=float(np.mean(between_seeds) / (seeds * (seeds - 1))),
        ignores_seed=bool((bits == bits[:1]).all()),
        same_in_every_order=bool((bits == bits[:, :1]).all()),
        broken_runs=int(grid("broken").sum()),
        seconds=float(grid("seconds").sum()),
        changed_by_predict=runs[0]["changes"],
        bits=hashlib.sha256("".join(bits.flat).encode()).hexdigest()[:16],
    )


def _search(session: Session, name: str, learner: Any, audit: LearnerAudit, budget: int) -> Tails:
    """Search the worst and the best order with seed 0, and repeat each with seed 1."""
    data = session.data
    made = 0

    def score(order: Order, seed: int = 0) -> float:
        nonlocal made
        if order in data.orders:
            return float(audit.scores[seed, data.orders.index(order)].mean())
        made += 1
        run = session.run(Trial(name, learner, order, seed))
        return float(np.mean(run["matrix"][-1]))

    known = {order: score(order) for order in data.orders}
    found = search_orders(score, known, budget - 2)
    ends = [min(found, key=lambda order: found[order]), max(found, key=lambda order: found[order])]
    worst, best = (
        Tail(order, data.order_name(order), found[order], score(order, seed=1)) for order in ends
    )
    return Tails(worst, best, min(known.values()), max(known.values()), made)
