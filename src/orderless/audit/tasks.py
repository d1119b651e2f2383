"""Audits of learners that learn task by task: the order of the tasks varies."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray

from ..tasks import Task
from .answers import LearnerError, as_array
from .orders import draw_orders
from .trials import AuditData, Trial, generators_set_by


class TaskData(AuditData):
    """Tasks; a learner is a function from a seed to a `TaskLearner`, asked after every task."""

    def __init__(self, tasks: Sequence[Task], orders: int, order_seed: int) -> None:
        self.tasks = _checked(tasks)
        self.steps = len(self.tasks)
        names = [task.name for task in self.tasks]
        targets = [as_array(task.y_test) for task in self.tasks]
        content = [part for t in self.tasks for part in (t.x, t.y, t.x_test, t.y_test)]
        sequences = draw_orders(len(self.tasks), orders, order_seed)
        super().__init__(names, targets, names, sequences, content)

    def train(self, trial: Trial, asks: Sequence[int]) -> Iterator[list[NDArray[Any]]]:
        with trial.failures("in make_learner(seed)"):
            learner = trial.learner(trial.seed)
        _check_learner(trial.name, learner)
        for number, often in zip(trial.order, asks, strict=True):
            task = self.tasks[number]
            with trial.failures(f"while learning task {task.name!r}"):
                # copies, because a learner may change its data in place
                learner.learn(task.x.clone(), task.y.clone(), task=number)
            for _ in range(often):
                # random numbers of `predict` must not change what is learned next
                with generators_set_by(trial.seed):
                    predictions = [_predict(trial, learner, task) for task in self.tasks]
                yield predictions


def _predict(trial: Trial, learner: Any, task: Task) -> NDArray[Any]:
    with trial.failures(f"while predicting task {task.name!r}"):
        return as_array(learner.predict(task.x_test.clone()))


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


def _checked(tasks: Any) -> list[Task]:
    """The tasks as a list, each with a name; raise `ValueError` if they cannot be audited."""
    if not isinstance(tasks, Sequence) or not all(isinstance(task, Task) for task in tasks):
        got = type(tasks).__name__
        if isinstance(tasks, Sequence):
            got += " of " + ", ".join(sorted({type(task).__name__ for task in tasks}))
        raise ValueError(
            f"tasks must be a list of ol.Task(x, y, x_test, y_test, name), got {got}; an estimator "
            "is audited by order_sensitivity(estimator, X, y)"
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
    if len({task.values for task in named}) > 1:
        raise ValueError("some tasks have labels and some have values: audit each kind alone")
    if len({task.name for task in named}) < len(named):
        raise ValueError("two tasks have the same name: give them different names")
    return named
