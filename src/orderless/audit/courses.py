"""What is audited, and what an audit puts in order: tasks for a learner of tasks, or rows for an
estimator."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ..errors import UserError
from ..io import digest
from ..tasks import Task, as_array

Order = tuple[int, ...]
Predictions = list[NDArray[Any]]  # for every test set
SCORES = ("predict_proba", "decision_function")  # of an estimator: more than a label
Loss = Callable[[Tensor, Tensor], Tensor]


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


@dataclass(frozen=True)
class Course:
    """Parts that are learned in some order, and test sets.

    `parts` and `tests` are their names, `targets` the labels or values of each test set, `orders`
    those of the audit, and `content` a hash of the data. `train(learner, order, seed)` trains a new
    learner and gives its predictions for all test sets, and what two runs are compared by: an
    estimator's scores, if it has some, else the predictions.
    """

    parts: list[str]
    tests: list[str]
    targets: list[NDArray[Any]]
    orders: list[Order]
    content: str
    train: Callable[[Any, Order, int], tuple[Predictions, Predictions]]

    def run(self, learner: Any, order: Order, seed: int) -> tuple[Predictions, Predictions]:
        """Train a new learner and ask it for all test sets, with global generators that are set by
        the seed, and restored afterwards."""
        python = random.getstate()
        numpy = np.random.get_state()
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            try:
                return self.train(learner, order, seed)
            finally:
                random.setstate(python)
                np.random.set_state(numpy)

    def name_of(self, order: Order) -> str:
        return " > ".join(self.parts[part] for part in order)


def draw_orders(parts: int, count: int, seed: int) -> list[Order]:
    """`count` different orders of so many parts, or all: as given first, then random ones.

    Order k depends on (parts, seed, k) only, not on their number.
    """
    generator = np.random.default_rng((seed, parts))
    orders = {tuple(range(parts)): None}  # a dict keeps the order of insertion
    while len(orders) < min(count, math.factorial(parts)):
        orders[tuple(generator.permutation(parts).tolist())] = None
    return list(orders)


def course_of_tasks(tasks: Sequence[Task], orders: int, order_seed: int) -> Course:
    """The order of the tasks varies; a learner is made by a function from a seed."""
    if not isinstance(tasks, Sequence) or not all(isinstance(task, Task) for task in tasks):
        raise UserError(
            f"tasks must be a list of ol.Task(x, y, x_test, y_test, name), got {tasks!r:.60}; an "
            "estimator is audited by order_sensitivity(estimator, X, y)"
        )
    if len({task.values for task in tasks}) > 1:
        raise UserError("some tasks have labels and some have values: audit each kind alone")

    def train(make_learner: Any, order: Order, seed: int) -> tuple[Predictions, Predictions]:
        learner = make_learner(seed)
        if not (hasattr(learner, "learn") and hasattr(learner, "predict")):
            raise LearnerError(
                "a learner needs learn(x, y, task=None) and predict(x), got a "
                f"{type(learner).__name__}: ol.audit.from_torch makes one of a network"
            )
        for number in order:
            task = tasks[number]
            # copies, because a learner may change its data in place
            learner.learn(task.x.clone(), task.y.clone(), task=number)
        predictions = [as_array(learner.predict(task.x_test.clone())) for task in tasks]
        return predictions, predictions

    names = [task.name or f"task {number}" for number, task in enumerate(tasks)]
    return Course(
        parts=names,
        tests=names,
        targets=[np.array(task.y_test.tolist()) for task in tasks],
        orders=draw_orders(len(tasks), orders, order_seed),
        content=digest([[task.x, task.y, task.x_test, task.y_test] for task in tasks]),
        train=train,
    )


def course_of_rows(
    estimator: Any, X: Any, y: ArrayLike, groups: ArrayLike | None, orders: int, order_seed: int
) -> Course:
    """The order of the rows varies, or that of groups of rows; a learner is an estimator.

    An order arranges the groups, whose rows stay in the order of the data. Without groups the
    training rows as given and in random orders are what an order chooses from. One row of four, of
    every group, is held out for testing.
    """
    import joblib
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import LabelEncoder
    from sklearn.utils import _safe_indexing, indexable

    labels = as_array(y)
    group = np.zeros(len(labels)) if groups is None else as_array(groups)
    X, _, _ = indexable(X, labels, group)
    names = list(dict.fromkeys(group.tolist()))  # in the order of the data
    splits = [train_test_split(np.flatnonzero(group == name), random_state=0) for name in names]
    blocks = [np.sort(training) for training, _ in splits]
    held_out = [np.sort(test) for _, test in splits]
    if groups is None:
        generators = [np.random.default_rng((order_seed, k)) for k in range(1, orders)]
        blocks += [generator.permutation(blocks[0]) for generator in generators]
        parts = ["rows as given", *(f"rows in random order {k}" for k in range(1, orders))]
        chosen: list[Order] = [(block,) for block in range(orders)]
    else:
        parts = [str(name) for name in names]
        chosen = draw_orders(len(parts), orders, order_seed)
    coded: Callable[..., Any] = np.float64
    if is_classifier(estimator):
        coded = LabelEncoder().fit(labels).transform

    def train(estimator: Any, order: Order, seed: int) -> tuple[Predictions, Predictions]:
        learner = clone(estimator)
        seeds = [name for name in learner.get_params() if name.endswith("random_state")]
        learner.set_params(**dict.fromkeys(seeds, seed))
        turns = [blocks[part] for part in order]
        if groups is not None and hasattr(learner, "partial_fit"):
            known = {"classes": np.unique(labels)} if is_classifier(learner) else {}
            for rows in turns:
                learner.partial_fit(_safe_indexing(X, rows), labels[rows], **known)
        else:
            rows = np.concatenate(turns)
            learner.fit(_safe_indexing(X, rows), labels[rows])
        tests = [_safe_indexing(X, rows) for rows in held_out]
        predictions = [coded(learner.predict(test)) for test in tests]
        score = next((getattr(learner, name) for name in SCORES if hasattr(learner, name)), None)
        if score is None:
            return predictions, predictions
        # two axes: scores of two classes may be one number a row, as labels are
        return predictions, [np.atleast_2d(as_array(score(test))) for test in tests]

    return Course(
        parts=parts,
        tests=["all rows"] if groups is None else parts,
        targets=[coded(labels[rows]) for rows in held_out],
        orders=chosen,
        content=joblib.hash([X, labels, blocks]),
        train=train,
    )


@dataclass(eq=False)
class TorchLearner:
    """A network and its optimizer, trained by batches. See `from_torch`."""

    seed: int
    module: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Loss
    batch_size: int
    epochs: int

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        """Train on one task; batches and dropout depend on (seed, task) alone."""
        generator = np.random.default_rng((self.seed, 0 if task is None else task + 1))
        torch.manual_seed(int(generator.integers(2**63)))
        self.module.train()
        if self.loss is F.cross_entropy and y.is_floating_point():
            raise LearnerError(
                f"the targets are values, {y.dtype}, and the loss is cross_entropy, of classes: "
                "pass loss=lambda outputs, y: F.mse_loss(outputs[:, 0], y) to from_torch"
            )
        size = min(self.batch_size, len(y))
        for _ in range(self.epochs):
            shuffled = torch.from_numpy(generator.permutation(len(y))).to(x.device)
            for rows in shuffled[: len(y) // size * size].split(size):
                self.optimizer.zero_grad()
                self.loss(self.module(x[rows]), y[rows]).backward()
                self.optimizer.step()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """The network's outputs in evaluation mode: `[B, C]`."""
        self.module.eval()
        return torch.cat([self.module(part) for part in x.split(1024)])


def from_torch(
    make_module: Callable[[], nn.Module],
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    *,
    loss: Loss = F.cross_entropy,
    batch_size: int = 32,
    epochs: int = 1,
) -> Callable[[int], TorchLearner]:
    """`make_learner` for a plain network and optimizer.

    Args:
        make_module: makes one network, after torch's generator was seeded; every order starts from
            the same network.
        make_optimizer: maps parameters to an optimizer, `lambda p: torch.optim.SGD(p, lr=0.1)`.
        loss: `(outputs, labels) -> scalar`.
        batch_size, epochs: of the passes over each task. Batches depend on (seed, task); the
            incomplete batch at the end of a pass is dropped.

    >>> make = from_torch(lambda: nn.Linear(3, 2), lambda p: torch.optim.SGD(p, lr=0.1))
    >>> learner = make(0)
    >>> learner.learn(torch.randn(40, 3), torch.randint(2, (40,)), task=0)
    >>> learner.predict(torch.randn(5, 3)).shape
    torch.Size([5, 2])
    """
    if isinstance(make_module, nn.Module):
        raise ValueError(
            "make_module must be a function that makes a new network for every run, got the "
            f"network {type(make_module).__name__}"
        )
    if min(batch_size, epochs) < 1:
        raise ValueError(f"batch_size and epochs must be at least 1, got {batch_size} and {epochs}")

    def network(seed: int) -> TorchLearner:  # the learner's name in the report
        torch.manual_seed(seed)
        module = make_module()
        optimizer = make_optimizer(module.parameters())
        return TorchLearner(seed, module, optimizer, loss, batch_size, epochs)

    return network
