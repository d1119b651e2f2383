"""`order_sensitivity`: train a learner in many orders with many seeds, and compare the scores."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from orderless_lab.experiments.engine import counting, refuse_too_many, run_cells
from orderless_lab.experiments.launch.local import InOrder
from orderless_lab.scenarios import Scenario
from orderless_lab.scenarios import orders as draw_orders
from orderless_lab.storage import Directory, read_cell

from ..tasks import Task
from .answers import LearnerError, as_array, chance, differences
from .comparison import ComparisonSettings, comparisons
from .learners import MakeLearner
from .result import LearnerAudit, OrderSensitivity, Tail, Tails
from .runs import AuditWork, Maker, Order, Place, Run, fingerprint
from .search import search as search_orders

Tell = Callable[[int, int, str], None]
Runs = Callable[[Sequence[Place]], list[Run]]
SMALLEST_SEARCH = 12


def order_sensitivity(
    make_learner: MakeLearner,
    tasks: Sequence[Task] | Scenario,
    orders: int = 10,
    seeds: int = 3,
    *,
    search: int = 0,
    compare: Sequence[str] | Mapping[str, MakeLearner] = (),
    settings: ComparisonSettings | None = None,
    order_seed: int = 0,
    name: str | None = None,
    progress: Tell = lambda done, total, text: None,
    out: Path | str | None = None,
    key: str = "",
) -> OrderSensitivity:
    """Measure how much the order of the tasks matters to a learner, and test against chance.

    The learner is made and trained `orders` x `seeds` times. Every run seeds the generators of
    Python, numpy and torch, gets copies of the same data, and differs from the others in the order
    of the tasks and in the seed alone. `predict` is called with every task's test data after each
    task, with its own generators. Scores are the accuracies after the last task, or R^2 if labels
    are floats. `decomposition.py` has the formulas of the variances and the test,
    `LearnerAudit.verdict` the rule by which a learner is called sensitive.

    Args:
        make_learner: maps a seed to a new learner with `learn(x, y, task=None)` and `predict(x)`;
            see `ol.audit.from_torch` and `ol.audit.from_partial_fit`.
        tasks: at least two of `ol.Task(x, y, x_test, y_test, name)`, or a `Scenario`, which then
            transforms its data.
        orders: number of orders. The first is that of `tasks`, the others are drawn by
            `order_seed`. All orders if there are no more: three tasks have six.
        seeds: number of seeds, 0, 1, ...; at least two.
        search: number of additional runs of the learner that search its worst and best order; see
            `search.py`. Both are then repeated with another seed.
        compare: names of this library's learners to compare with ("wpf", "averaging", "product",
            "rb"), or your own as {name: make_learner}.
        settings: settings of this library's learners.
        name: the learner's name in the report.
        progress: called as `progress(done, total, text)` before each run, and once at the end.
        out: a folder for finished runs; the same call with the same folder computes only what is
            missing. Each learner and each list of tasks needs its own folder.
        key: any text that identifies the version of the learner; a folder with runs of another key
            is refused.

    >>> from orderless.audit import from_torch
    >>> x, truth = torch.randn(2, 40, 3), lambda t: (x[t, :, t] > 0).long()
    >>> tasks = [Task(x[t], truth(t), x[t], truth(t), name=f"day {t}") for t in (0, 1)]
    >>> make_learner = from_torch(
    ...     lambda: torch.nn.Linear(3, 2), lambda p: torch.optim.SGD(p, lr=1.0)
    ... )
    >>> order_sensitivity(make_learner, tasks, 2, 2, compare=()).learner.scores.shape
    (2, 2, 2)
    """
    if not callable(make_learner):
        raise LearnerError(
            f"make_learner must be a function from a seed to a learner, got {make_learner!r}"
        )
    checked = _checked(tasks)
    for what, value in (("orders", orders), ("seeds", seeds)):
        if not isinstance(value, int) or value < 2:
            raise ValueError(
                f"{what} must be at least 2, got {value!r}: with fewer, an effect of the order "
                "cannot be distinguished from chance"
            )
    if not isinstance(search, int) or search < 0 or 0 < search < SMALLEST_SEARCH:
        raise ValueError(f"search must be 0 or at least {SMALLEST_SEARCH} runs, got {search!r}")
    count = min(orders, math.factorial(len(checked)))
    refuse_too_many(count * seeds + search)
    sequences = draw_orders(len(checked), count, order_seed)
    own = name or getattr(make_learner, "__name__", "learner").strip("<>")
    settings = settings or ComparisonSettings()
    ours, theirs = ((), compare) if isinstance(compare, Mapping) else (compare, {})
    ours = (ours,) if isinstance(ours, str) else tuple(ours)
    others = {**comparisons(ours, checked, settings), **theirs}
    if own in others:
        raise ValueError(f"two learners have the name {own!r}: give yours another name")
    makers = {own: make_learner, **others}
    data = fingerprint(checked)
    made_by = {n: Maker(data, settings=settings) if n in ours else Maker(data, key) for n in makers}
    work = AuditWork(makers, made_by, checked)
    places = [
        Place(label, seed, order, number)
        for label in makers
        for seed in range(seeds)
        for number, order in enumerate(sequences)
    ]
    before, everything = 0, len(places) + search
    with ExitStack() as stack:
        store = Directory(out or stack.enter_context(tempfile.TemporaryDirectory()))

        def tell(done: int, total: int, text: str) -> None:
            if text != "done":
                progress(before + done, everything, text)

        def runs(wanted: Sequence[Place]) -> list[Run]:
            nonlocal before
            run_cells(wanted, work, store, InOrder(one_thread=False), counting(tell))
            before += len(wanted)
            return [work.read(read_cell(store.cell_path(place.name))) for place in wanted]

        found = iter(runs(places))
        grids = [[[next(found) for _ in sequences] for _ in range(seeds)] for _ in makers]
        audits = [_audit(label, grid, checked) for label, grid in zip(makers, grids, strict=True)]
        tails = _search(own, audits[0], sequences, runs, search) if search else None
    progress(everything, everything, "done")
    names = tuple(task.name for task in checked)
    return OrderSensitivity(
        audits[0],
        tuple(audits[1:]),
        names,
        tuple(sequences),
        seeds,
        score="R^2" if checked[0].values else "accuracy",
        chance=chance(checked),
        chance_in_task=float(np.mean([chance([task]) for task in checked])),
        samples=sum(len(task.y_test) for task in checked),
        tails=tails,
    )


def _search(
    own: str, learner: LearnerAudit, orders: Sequence[Order], runs: Runs, budget: int
) -> Tails:
    """Search the worst and the best order with seed 0, and repeat each with seed 1."""
    made = 0

    def score(order: Order, seed: int = 0) -> float:
        nonlocal made
        if order in orders:
            return float(learner.scores[seed, orders.index(order)].mean())
        made += 1
        [run] = runs([Place(own, seed, order)])
        return float(run.matrix[-1].mean())

    known = {order: score(order) for order in orders}
    found = search_orders(score, known, budget - 2)
    ends = [min(found, key=lambda o: found[o]), max(found, key=lambda o: found[o])]
    worst, best = (Tail(order, found[order], score(order, seed=1)) for order in ends)
    return Tails(worst, best, min(known.values()), max(known.values()), made)


def _checked(tasks: Any) -> list[Task]:
    """The tasks as a list, each with a name; raise `ValueError` if they cannot be audited."""
    if isinstance(tasks, Scenario):
        if tasks.kind == "task":
            raise ValueError(
                "predict does not get the task: use a scenario of kind domain or class"
            )
        sets = [(*tasks.train_set(t), *tasks.test_set(t)) for t in range(len(tasks))]
        tasks = [Task(*data, name) for data, name in zip(sets, tasks.task_names, strict=True)]
    if not isinstance(tasks, Sequence) or not all(isinstance(task, Task) for task in tasks):
        found = type(tasks).__name__
        if isinstance(tasks, Sequence):
            found += " of " + ", ".join(sorted({type(task).__name__ for task in tasks}))
        raise ValueError(
            "tasks must be a list of ol.Task(x, y, x_test, y_test, name) or a Scenario, got "
            f"{found}"
        )
    named = [replace(task, name=task.name or f"task {number}") for number, task in enumerate(tasks)]
    if len(named) < 2:
        raise ValueError(f"an audit needs at least two tasks to reorder, got {len(named)}")
    for task in named:
        for x, part in ((task.x, "training"), (task.x_test, "test")):
            if x.is_floating_point() and not x.isfinite().all():
                raise ValueError(
                    f"the {part} inputs of task {task.name!r} hold values that are not finite: "
                    "clean the data first"
                )
        if task.values and task.y_test.double().var(correction=0) == 0:
            raise ValueError(f"R^2 needs test values that differ, got equal ones in {task.name!r}")
    if len({task.values for task in named}) > 1:
        raise ValueError("some tasks have labels and some have values: audit each kind alone")
    if len({task.name for task in named}) < len(named):
        raise ValueError("two tasks have the same name: give them different names")
    return named


def _audit(name: str, rows: list[list[Run]], tasks: Sequence[Task]) -> LearnerAudit:
    """The audit of one learner from its runs `[S, O]`."""
    y = np.concatenate([as_array(task.y_test) for task in tasks])
    answers = np.stack([[run.answers for run in row] for row in rows])  # [S, O, B]
    bits = np.array([[run.record.bits for run in row] for row in rows])
    seeds = len(rows)
    between_seeds = [differences(row, y).sum() for row in answers.swapaxes(0, 1)]
    return LearnerAudit(
        name=name,
        matrices=np.stack([[run.matrix for run in row] for row in rows]),
        disagreement=np.mean([differences(row, y) for row in answers], axis=0),
        seed_disagreement=float(np.mean(between_seeds) / (seeds * (seeds - 1))),
        ignores_seed=bool((bits == bits[:1]).all()),
        same_in_every_order=bool((bits == bits[:, :1]).all()),
        broken_runs=sum(run.record.broken for row in rows for run in row),
        seconds=sum(run.record.duration for row in rows for run in row),
        changed_by_predict=rows[0][0].record.changes,
    )
