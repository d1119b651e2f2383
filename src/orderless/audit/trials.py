"""One trial of an audit: a learner is trained in one order with one seed, and asked."""

import hashlib
import random
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .answers import LearnerError, as_array, read_answers, score
from .orders import Order

Record = dict[str, Any]  # a finished trial, as plain numbers and lists


class Trial(NamedTuple):
    """What tells one trial from another."""

    name: str
    learner: Any
    order: Order
    seed: int

    @contextmanager
    def failures(self, when: str) -> Iterator[None]:
        """Convert an error inside the learner to a `LearnerError` with its file and line."""
        try:
            yield
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise LearnerError(
                f"the learner {self.name!r} failed {when} in the order {list(self.order)} with "
                f"seed {self.seed}: {type(error).__name__}: {error} ({frame.filename}, line "
                f"{frame.lineno})"
            ) from error


class AuditData(ABC):
    """The data of an audit: what is put in order, and how a learner is trained and asked.

    Args:
        names, targets: of the test sets.
        parts: names of what an order arranges.
        orders: the orders of the audit; the first is that of the data as given.
        content: everything that a result may depend on, to be hashed.
    """

    steps = 1  # how often a learner is asked in a trial

    def __init__(
        self,
        names: Sequence[str],
        targets: Sequence[NDArray[Any]],
        parts: Sequence[str],
        orders: Sequence[Order],
        content: Iterable[Any],
    ) -> None:
        self.names = tuple(names)
        self.targets = list(targets)
        self.parts = tuple(parts)
        self.orders = tuple(orders)
        self.content = hashed([np.array(self.names), *content])
        for name, y in zip(names, targets, strict=True):
            if y.dtype.kind == "f" and y.var() == 0:
                raise ValueError(f"R^2 needs test values that differ, got equal ones in {name!r}")

    def order_name(self, order: Order) -> str:
        return " > ".join(self.parts[part] for part in order)

    def digest(self, order: Order) -> str:
        """A hash of the data and of the order they are learned in."""
        return hashlib.sha256(f"{self.content} {order}".encode()).hexdigest()[:16]

    @abstractmethod
    def train(self, trial: Trial, asks: Sequence[int]) -> Iterator[list[NDArray[Any]]]:
        """Train, and yield predictions for all test sets, `asks[k]` times after step k."""


def compute(data: AuditData, trial: Trial, *, test_predict: bool) -> Record:
    """Train a new learner and ask it after every step.

    `matrix` `[K, T]` are the scores on all T test sets each of the K times, `answers` `[B]` those
    for all test samples at the end; `bits` is a hash of the raw predictions then, and `broken`
    tells whether some were not finite.

    `predict` must not change the learner. `test_predict` compares with another learner, which
    predicts twice at the end and never before, and must give the same bits both times.
    """
    begun = time.monotonic()
    matrix = []
    for predictions in raw_predictions(data, trial, [1] * data.steps):
        pairs = list(zip(predictions, data.targets, strict=True))
        answers = [read_answers(trial.name, given, y) for given, y in pairs]
        matrix.append([score(a, y) for (a, _), y in zip(answers, data.targets, strict=True)])
        bits = hashed(predictions)
    seconds = time.monotonic() - begun
    late = [0] * (data.steps - 1) + [2]
    others = raw_predictions(data, trial, late) if test_predict else []
    return {
        "matrix": matrix,
        "answers": np.concatenate([a for a, _ in answers]).tolist(),
        "bits": bits,
        "broken": not all(finite for _, finite in answers),
        "seconds": seconds,
        "changes": any([hashed(predictions) != bits for predictions in others]),
    }


def raw_predictions(
    data: AuditData, trial: Trial, asks: Sequence[int]
) -> Iterator[list[NDArray[Any]]]:
    with generators_set_by(trial.seed):
        yield from data.train(trial, asks)


def hashed(arrays: Iterable[Any]) -> str:
    """A hash of the types, shapes and contents of arrays, tensors and sparse matrices."""
    digest = hashlib.sha256()
    for values in arrays:
        parts = [values]
        if hasattr(values, "indptr"):
            parts = [values.indptr, values.indices, values.data]
        for array in map(as_array, parts):
            digest.update(repr((array.dtype.str, array.shape)).encode())
            if array.dtype == object:
                digest.update(repr(array.tolist()).encode())
            else:
                digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@contextmanager
def generators_set_by(seed: int) -> Iterator[None]:
    """Seed the global generators, and restore them afterwards."""
    python = random.getstate()
    numpy = np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
