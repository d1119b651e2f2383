"""The runs of an audit: cells of a grid, each one learner in one order from one seed."""

import base64
import hashlib
import random
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import torch

from ..experiments.engine import Tick
from ..scenarios import Task
from ..storage import Directory, versions
from ..storage.typed import decode, optional
from .answers import Answers, LearnerError, as_array, read_answers, score
from .comparison import ComparisonSettings
from .decomposition import Array
from .learners import MakeLearner

Order = tuple[int, ...]


class Place(NamedTuple):
    """Which run of an audit; `number` of its order among those drawn, None of one searched for."""

    learner: str
    seed: int
    order: Order
    number: int | None = None

    @property
    def kind(self) -> str:
        return "a search" if self.number is None else f"order {self.number}"

    @property
    def name(self) -> str:
        found = hashlib.sha256(repr(self.order).encode()).hexdigest()[:16]
        order = f"found{found}" if self.number is None else f"order{self.number}"
        return f"{quote(self.learner, safe=' +()')}-{order}-seed{self.seed}"

    @property
    def title(self) -> str:
        return f"{self.learner} seed {self.seed} {self.kind}"

    @property
    def slow(self) -> bool:
        return False


@dataclass(frozen=True)
class Maker:
    """What a run depends on beside order and seed.

    `tasks`: a fingerprint; `key`: what tells versions of a user's learner apart; `settings`: of
    this library's own.
    """

    tasks: str
    key: str | None = optional()
    settings: ComparisonSettings | None = optional()


@dataclass(frozen=True)
class Record:
    """A run as its file has it."""

    learner: str
    seed: int
    order_index: int | None
    order: list[int]
    maker: Maker
    labels: str
    """Answers about the test samples of all tasks one after another, 8 bytes each, compressed."""
    bits: str
    """A hash of what `predict` gave in the end."""
    broken: bool
    """Whether some of that was not finite."""
    matrix: list[list[float]]
    """`[T, T]`: score on task t after k + 1 tasks."""
    duration: float
    versions: dict[str, str]
    changes: bool = False
    """Whether the learner answered otherwise when it was asked at other times; tried once."""


class Run(NamedTuple):
    """A record, and of what it holds the answers `[B]` and the matrix `[T, T]` as arrays."""

    record: Record
    answers: Answers
    matrix: Array


@dataclass(frozen=True)
class AuditWork:
    """How the runs of an audit are computed.

    Args:
        makers: per learner `make_learner`.
        made_by: per learner; runs that were made by anything else are refused, never mixed in.
    """

    makers: Mapping[str, MakeLearner]
    made_by: Mapping[str, Maker]
    tasks: Sequence[Task]

    device = torch.device("cpu")

    def prepare(self, say: Callable[[str], None]) -> None:
        pass

    def memory(self) -> int:
        return 0

    def compute(self, place: Place, store: Directory, tick: Tick) -> None:
        """Train a learner on the tasks in an order, and ask about all of them after each.

        `predict` must leave the learner as it is. The first run tests that: another learner, asked
        twice at the end and never before, must give the same bits both times.
        """
        begun, tasks = time.monotonic(), self.tasks
        make_learner = self.makers[place.learner]
        asked = _train(place, make_learner, tasks)
        seconds = time.monotonic() - begun
        answers, bits, broken = asked[-1]
        others: list[Asked] = []
        if place.number == place.seed == 0:
            others = _train(place, make_learner, tasks, times=[0] * (len(tasks) - 1) + [2])
        record = Record(
            learner=place.learner,
            seed=place.seed,
            order_index=place.number,
            order=list(place.order),
            maker=self.made_by[place.learner],
            labels=base64.b64encode(zlib.compress(np.concatenate(answers).tobytes())).decode(),
            bits=bits,
            broken=broken,
            matrix=[
                [score(found, as_array(t.y_test)) for found, t in zip(answers, tasks, strict=True)]
                for answers, _, _ in asked
            ],
            duration=seconds,
            versions=versions(),
            changes=any(other != bits for _, other, _ in others),
        )
        store.write_cell(place.name, record)

    def read(self, cell: object) -> Run:
        """What a kept run holds."""
        record, samples = decode(Record, cell), sum(len(task.y_test) for task in self.tasks)
        # no more than there should be, whatever a small file unpacks to
        unpack = zlib.decompressobj()
        try:
            packed = unpack.decompress(base64.b64decode(record.labels), 8 * samples + 1)
        except zlib.error as error:
            raise ValueError(f"labels: {error}") from None
        answers = np.frombuffer(packed, "<f8" if self.tasks[0].values else "<i8")
        matrix = np.array(record.matrix, float).reshape(len(self.tasks), len(self.tasks))
        return Run(record, answers.reshape(samples), matrix)

    def refuse(self, directory: Path, name: str, record: Any, cell: Place | None) -> str | None:
        """Why a run does not belong to this audit."""
        elsewhere = "choose another folder (--out)"
        if "maker" not in record or (cell is not None and record["learner"] != cell.learner):
            return f"{directory} holds no audit: {elsewhere}"
        if cell is None:  # another learner's, or of more orders
            return None
        found, ours = decode(Record, record), self.made_by[cell.learner]
        if found.maker.tasks != ours.tasks:
            return (
                f"{directory} holds an audit on other tasks: {elsewhere}; tasks that are drawn at "
                "random must be drawn with a fixed seed"
            )
        if found.maker != ours:
            return f"{directory} holds runs of another version of {cell.learner}: {elsewhere}"
        if (found.order, found.seed) != (list(cell.order), cell.seed):
            return f"{directory} holds runs of other orders of {cell.learner}: {elsewhere}"
        self.read(record)  # raises if it makes no sense
        return None


def fingerprint(tasks: Sequence[Task]) -> str:
    """Of names and all data: an audit goes on only with the tasks it began with."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(repr(task.name).encode())
        for tensor in (task.x, task.y, task.x_test, task.y_test):
            array = np.ascontiguousarray(as_array(tensor))
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(array.data)
    return digest.hexdigest()


Asked = tuple[list[Answers], str, bool]


def _train(
    place: Place, make_learner: MakeLearner, tasks: Sequence[Task], times: Sequence[int] = ()
) -> list[Asked]:
    """Train a new learner on the tasks in turn; its answers about all of them after each task,
    asked once, or as often as `times` says.
    """
    name, asked = place.learner, []
    where = f"in {place.kind} with seed {place.seed}"
    with _generators_set_by(place.seed):
        with _failures(name, f"in make_learner(seed) {where}"):
            learner = make_learner(place.seed)
        _check_learner(name, learner)
        for task, often in zip(place.order, times or [1] * len(tasks), strict=True):
            # copies, so that a learner that works in place cannot change the data of the next run
            x, y = tasks[task].x.clone(), tasks[task].y.clone()
            with _failures(name, f"while learning task {tasks[task].name!r} {where}"):
                learner.learn(x, y, task=task)
            for _ in range(often):
                # what a question draws at random must not change what is learned next
                with _generators_set_by(place.seed):
                    asked.append(_ask(name, learner, tasks, where))
    return asked


def _ask(name: str, learner: Any, tasks: Sequence[Task], where: str) -> Asked:
    """Answers per task, a hash of them as given, and whether some of them are not finite."""
    answers, digest, broken = [], hashlib.sha256(), False
    for each in tasks:
        with _failures(name, f"while predicting task {each.name!r} {where}"):
            given = as_array(learner.predict(each.x_test.clone()))
        digest.update(repr((given.dtype, given.shape)).encode())
        digest.update(np.ascontiguousarray(given).tobytes())
        found, finite = read_answers(name, given, as_array(each.y_test))
        answers.append(found)
        broken = broken or not finite
    return answers, digest.hexdigest(), broken


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
