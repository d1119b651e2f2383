"""`order_sensitivity`: train anybody's learner in many orders with many seeds, and compare."""

from __future__ import annotations

import hashlib
import math
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import metrics
from ..scenarios import Scenario, Task
from ..scenarios import orders as draw_orders
from .comparison import ComparisonSettings, comparisons
from .learners import MakeLearner
from .result import LearnerAudit, OrderSensitivity, pairwise_disagreement
from .runs import FinishedRuns, Labels, Place, Run, fingerprint

Progress = Callable[[int, int, str], None]


class LearnerError(ValueError):
    """The audited learner failed, or is none; the message says where."""


def order_sensitivity(
    make_learner: MakeLearner,
    tasks: Sequence[Task] | Scenario,
    orders: int = 10,
    seeds: int = 3,
    *,
    compare: Sequence[str] | Mapping[str, MakeLearner] = ("wpf", "rb"),
    settings: ComparisonSettings | None = None,
    order_seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
    out: Path | str | None = None,
    key: str = "",
) -> OrderSensitivity:
    """How much the order of the tasks matters to a learner, and whether that is more than chance.

    The learner is made and trained `orders` x `seeds` times. Every run starts with the generators
    of Python, numpy and torch set by its seed, gets copies of the same data, and differs from the
    others in the order of the tasks and in the seed alone. `predict` is asked about every task's
    test data after each task, with generators of its own; scores are the accuracies after the last
    one. `decomposition.py` has the formulas of the variances and the
    test, `LearnerAudit.verdict` the rule by which a learner is called sensitive.

    Args:
        make_learner: from a seed to a new learner with `learn(x, y, task=None)` and `predict(x)`;
            see `ol.audit.from_torch` and `ol.audit.from_partial_fit`.
        tasks: `ol.Task(x, y, x_test, y_test, name)` for each, at least two; or a `Scenario`, whose
            data is then transformed by it.
        orders: how many; the first is that of `tasks`, the others are drawn by `order_seed`. All
            where there are no more: three tasks have six.
        seeds: how many, 0, 1, ...; at least two.
        compare: names of this library's learners to run beside it ("wpf", "averaging", "product",
            "rb"), or your own as {name: make_learner}; () for none.
        settings: how those of this library are built.
        name: of the learner, for the report.
        progress: called as `progress(done, total, text)` before each run, and once at the end.
        out: a folder in which every finished run is kept; the same call with the same folder
            computes only what is missing. Another learner, other tasks: another folder.
        key: any text that tells versions of the learner apart; a folder that holds runs with
            another key is refused.

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
                f"{what} must be at least 2, got {value!r}: with fewer, order and chance cannot be "
                "told apart"
            )
    every = math.factorial(len(checked))
    sequences = draw_orders(len(checked), min(orders, every), order_seed)
    own = name or getattr(make_learner, "__name__", "learner").strip("<>")
    compare = (compare,) if isinstance(compare, str) else compare
    others = dict(compare) if isinstance(compare, Mapping) else {}
    if not isinstance(compare, Mapping):
        others = comparisons(tuple(compare), checked, settings)
    if own in others:
        raise ValueError(f"two learners are called {own!r}: give yours another name")
    makers = {own: make_learner, **others}
    made_by = _made_by(checked, makers, compare, settings, key)
    samples = sum(len(task.y_test) for task in checked)
    finished = FinishedRuns(out, made_by, sequences, samples)
    runs = _runs(makers, checked, sequences, seeds, finished, progress)
    audits = [_audit(label, checked, runs, seeds, len(sequences)) for label in makers]
    names = tuple(task.name for task in checked)
    return OrderSensitivity(audits[0], tuple(audits[1:]), names, tuple(sequences), seeds)


def _made_by(
    tasks: Sequence[Task],
    makers: Mapping[str, MakeLearner],
    compare: Sequence[str] | Mapping[str, MakeLearner],
    settings: ComparisonSettings | None,
    key: str,
) -> dict[str, dict[str, Any]]:
    """What a kept run must have been made by to be of use: the key is of the user's learners."""
    data = fingerprint(tasks)
    built = () if isinstance(compare, Mapping) else compare
    ours = {"tasks": data, "settings": asdict(settings or ComparisonSettings())}
    return {name: ours if name in built else {"tasks": data, "key": key} for name in makers}


def _runs(
    makers: Mapping[str, MakeLearner],
    tasks: Sequence[Task],
    orders: Sequence[Sequence[int]],
    seeds: int,
    finished: FinishedRuns,
    progress: Progress | None,
) -> dict[Place, Run]:
    """Every learner with every seed in every order; what is finished already is not run again."""
    tell = progress or (lambda done, total, text: None)
    places = [
        Place(name, seed, number)
        for name in makers
        for seed in range(seeds)
        for number in range(len(orders))
    ]
    with finished.opened(places) as runs:
        for place in [place for place in places if place not in runs]:
            name, seed, number = place
            tell(len(runs), len(places), f"{name} seed {seed} order {number}")
            with _generators_set_by(seed):
                run = _run(name, makers[name], tasks, orders[number], place)
            finished.keep(place, run)
            runs[place] = run
    tell(len(places), len(places), "done")
    return runs


def _checked(tasks: Any) -> list[Task]:
    """Tasks as a list, named, or a sentence that says what is wrong with them."""
    if isinstance(tasks, Scenario):
        if tasks.kind == "task":
            raise ValueError("predict is not told the task: use a scenario of kind domain or class")
        tasks = [
            Task(*tasks.train_set(t), *tasks.test_set(t), tasks.task_names[t])
            for t in range(len(tasks))
        ]
    if not isinstance(tasks, Sequence) or not all(isinstance(task, Task) for task in tasks):
        found = type(tasks).__name__
        if isinstance(tasks, Sequence):
            found += " of " + ", ".join(sorted({type(task).__name__ for task in tasks}))
        raise ValueError(
            "tasks must be a list of ol.Task(x, y, x_test, y_test, name) or a Scenario, got "
            f"{found}"
        )
    if len(tasks) < 2:
        raise ValueError(f"an audit needs at least two tasks to reorder, got {len(tasks)}")
    named = []
    for number, task in enumerate(tasks):
        task = replace(task, name=task.name or f"task {number}")
        for x, part in ((task.x, "training"), (task.x_test, "test")):
            if x.is_floating_point() and not x.isfinite().all():
                raise ValueError(
                    f"the {part} inputs of task {task.name!r} hold values that are not finite: "
                    "clean the data first"
                )
        named.append(task)
    if len({task.name for task in named}) < len(named):
        raise ValueError("two tasks have the same name: a report could not tell them apart")
    return named


def _audit(
    name: str, tasks: Sequence[Task], runs: Mapping[Place, Run], seeds: int, orders: int
) -> LearnerAudit:
    rows = [[runs[Place(name, seed, order)] for order in range(orders)] for seed in range(seeds)]
    labels = np.stack([[run.labels for run in row] for row in rows])  # [S, O, B]
    bits = np.array([[run.bits for run in row] for row in rows])
    between_seeds = [metrics.disagreement(row) for row in labels.swapaxes(0, 1)]
    return LearnerAudit(
        name=name,
        matrices=np.stack([[run.matrix for run in row] for row in rows]),
        disagreement=np.mean([pairwise_disagreement(row) for row in labels], axis=0),
        seed_disagreement=float(np.mean(between_seeds)),
        ignores_seed=bool((bits == bits[:1]).all()),
        same_in_every_order=bool((bits == bits[:, :1]).all()),
        broken_runs=sum(run.broken for row in rows for run in row),
        seconds=sum(run.seconds for row in rows for run in row),
    )


def _run(
    name: str, make_learner: MakeLearner, tasks: Sequence[Task], order: Sequence[int], place: Place
) -> Run:
    """Make a learner, teach it the tasks in this order, and ask it about all of them each time."""
    begun = time.monotonic()
    where = f"in order {place.order} with seed {place.seed}"
    with _failures(name, f"when it was made {where}"):
        learner = make_learner(place.seed)
    _check_learner(name, learner)
    matrix = []
    for task in order:
        # copies, so that a learner that works in place cannot change the data of the next run
        x, y = tasks[task].x.clone(), tasks[task].y.clone()
        with _failures(name, f"while learning task {tasks[task].name!r} {where}"):
            learner.learn(x, y, task=task)
        # what a question draws at random must not change what is learned next
        with _generators_set_by(place.seed):
            labels, bits, broken = _ask(name, learner, tasks, where)
        answers = zip(labels, tasks, strict=True)
        matrix.append([float((found == t.y_test.cpu().numpy()).mean()) for found, t in answers])
    seconds = time.monotonic() - begun
    return Run(np.concatenate(labels), bits, broken, np.array(matrix), seconds)


def _ask(
    name: str, learner: Any, tasks: Sequence[Task], where: str
) -> tuple[list[Labels], str, bool]:
    """Labels per task, a hash of the answers, and whether some of them are not finite."""
    labels, digest, broken = [], hashlib.sha256(), False
    for each in tasks:
        with _failures(name, f"while predicting task {each.name!r} {where}"):
            answer = learner.predict(each.x_test.clone())
        values = answer.detach().cpu().numpy() if isinstance(answer, Tensor) else np.asarray(answer)
        digest.update(repr((values.dtype, values.shape)).encode())
        digest.update(np.ascontiguousarray(values).tobytes())
        found, finite = _labels(name, values, len(each.y_test))
        labels.append(found)
        broken = broken or not finite
    return labels, digest.hexdigest(), broken


def _check_learner(name: str, learner: Any) -> None:
    for method in ("learn", "predict"):
        if not callable(getattr(learner, method, None)):
            hint = ""
            if isinstance(learner, torch.nn.Module):
                hint = "; ol.audit.from_torch makes a learner of a network and its optimizer"
            elif hasattr(learner, "partial_fit"):
                hint = "; ol.audit.from_partial_fit makes a learner of an estimator"
            raise LearnerError(
                f"the learner {name!r} ({type(learner).__name__}) has no method {method}: it needs "
                f"learn(x, y, task=None) and predict(x){hint}"
            )


def _labels(name: str, values: NDArray[Any], count: int) -> tuple[Labels, bool]:
    """Labels `[B]` from labels or scores; -1, which is never right, where they are not finite."""
    fits = values.ndim in (1, 2) and len(values) == count and values.shape[-1:] != (0,)
    if not fits or values.dtype.kind not in "biuf" or (values.ndim == 2 and values.shape[1] == 1):
        raise LearnerError(
            f"predict of {name!r} must give labels [B] or scores [B, C] of at least two classes "
            f"for B={count}, got {values.dtype} {list(values.shape)}"
        )
    finite = np.isfinite(values) if values.ndim == 1 else _comparable(values)
    with np.errstate(invalid="ignore"):
        found = (values if values.ndim == 1 else values.argmax(axis=1)).astype(np.int64)
    if values.ndim == 1 and (values[finite] != found[finite]).any():
        raise LearnerError(
            f"predict of {name!r} gave numbers that are no labels, such as "
            f"{values[finite][values[finite] != found[finite]][0]}: labels are whole, and scores "
            "have shape [B, C]"
        )
    return np.where(finite, found, -1), bool(finite.all())


def _comparable(scores: NDArray[Any]) -> NDArray[np.bool_]:
    """`[B]`: rows of scores with a largest one; log-probabilities of -inf are fine."""
    return ~np.isnan(scores).any(axis=1) & np.isfinite(scores.max(axis=1))


@contextmanager
def _failures(name: str, when: str) -> Iterator[None]:
    """What goes wrong inside a learner, with the place where it did."""
    try:
        yield
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise LearnerError(
            f"the learner {name!r} failed {when}: {type(error).__name__}: {error} "
            f"({frame.filename}, line {frame.lineno})"
        ) from error


@contextmanager
def _generators_set_by(seed: int) -> Iterator[None]:
    """The global generators set by the seed; afterwards as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
