"""The runs of an audit: each is a cell, one learner in one order with one seed."""

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

from orderless_lab.experiments.engine import Tick
from orderless_lab.storage import Directory, versions
from orderless_lab.storage.typed import decode, optional

from ..tasks import Task
from .answers import Answers, LearnerError, as_array, read_answers, score
from .comparison import ComparisonSettings
from .decomposition import Array
from .learners import MakeLearner

Order = tuple[int, ...]


class Place(NamedTuple):
    """Identifies a run; `number` is the index of its order, None for an order of a search."""

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
    """What a run depends on apart from order and seed.

    `tasks` is a fingerprint, `key` identifies the version of a user's learner, and `settings` are
    those of this library's learners.
    """

    tasks: str
    key: str | None = optional()
    settings: ComparisonSettings | None = optional()


@dataclass(frozen=True)
class Record:
    """The record of a run."""

    learner: str
    seed: int
    order_index: int | None
    order: list[int]
    maker: Maker
    labels: str
    """The answers for the test samples of all tasks in turn, 8 bytes each, compressed."""
    bits: str
    """A hash of the last predictions."""
    broken: bool
    """Whether some of them were not finite."""
    matrix: list[list[float]]
    """`[T, T]`: score on task t after k + 1 tasks."""
    duration: float
    versions: dict[str, str]
    changes: bool = False
    """Whether the answers depend on when `predict` is called; tested in one run."""


class Run(NamedTuple):
    """A record, with its answers `[B]` and its matrix `[T, T]` as arrays."""

    record: Record
    answers: Answers
    matrix: Array


@dataclass(frozen=True)
class AuditWork:
    """Computes and checks the runs of an audit.

    Args:
        makers: `make_learner` of each learner.
        made_by: the `Maker` of each learner; runs of another one are refused.
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
        """Train a learner on the tasks in an order, and predict all of them after each.

        `predict` must not change the learner. The first run tests this: another learner, which
        predicts twice at the end and never before, must give the same bits both times.
        """
        begun, make_learner, tasks = time.monotonic(), self.makers[place.learner], self.tasks
        asked = _train(place, make_learner, tasks)
        seconds = time.monotonic() - begun
        answers, bits, broken = asked[-1]
        late = [0] * (len(tasks) - 1) + [2] if place.number == place.seed == 0 else []
        others = _train(place, make_learner, tasks, times=late) if late else []
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
        """Decode the record of a run."""
        record, samples = decode(Record, cell), sum(len(task.y_test) for task in self.tasks)
        # at most the expected size, because a small file may unpack to a huge one
        unpack = zlib.decompressobj()
        try:
            packed = unpack.decompress(base64.b64decode(record.labels), 8 * samples + 1)
        except zlib.error as error:
            raise ValueError(f"labels: {error}") from None
        answers = np.frombuffer(packed, "<f8" if self.tasks[0].values else "<i8")
        matrix = np.array(record.matrix, float).reshape(len(self.tasks), len(self.tasks))
        return Run(record, answers.reshape(samples), matrix)

    def refuse(self, directory: Path, name: str, record: Any, cell: Place | None) -> str | None:
        """The reason why a run does not belong to this audit, or None."""
        elsewhere = "choose another folder (--out)"
        if "maker" not in record or (cell is not None and record["learner"] != cell.learner):
            return f"{directory} holds no audit: {elsewhere}"
        if cell is None:  # of another learner, or of more orders
            return None
        found, ours = decode(Record, record), self.made_by[cell.learner]
        if found.maker.tasks != ours.tasks:
            return (
                f"{directory} holds an audit on other tasks: {elsewhere}; random tasks need a "
                "fixed seed"
            )
        if found.maker != ours:
            return f"{directory} holds runs of another version of {cell.learner}: {elsewhere}"
        if (found.order, found.seed) != (list(cell.order), cell.seed):
            return f"{directory} holds runs of other orders of {cell.learner}: {elsewhere}"
        self.read(record)  # raises if it makes no sense
        return None


def fingerprint(tasks: Sequence[Task]) -> str:
    """A hash of the names and data of all tasks; an audit is resumed only with the same tasks."""
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
    """Train a new learner on the tasks in turn and return its answers for all tasks.

    After each task it predicts once, or as often as `times` says.
    """
    name, asked = place.learner, []
    where = f"in {place.kind} with seed {place.seed}"
    with _generators_set_by(place.seed):
        with _failures(name, f"in make_learner(seed) {where}"):
            learner = make_learner(place.seed)
        _check_learner(name, learner)
        for task, often in zip(place.order, times or [1] * len(tasks), strict=True):
            # copies, because a learner may change its data in place
            x, y = tasks[task].x.clone(), tasks[task].y.clone()
            with _failures(name, f"while learning task {tasks[task].name!r} {where}"):
                learner.learn(x, y, task=task)
            for _ in range(often):
                # random numbers of `predict` must not change what is learned next
                with _generators_set_by(place.seed):
                    asked.append(_ask(name, learner, tasks, where))
    return asked


def _ask(name: str, learner: Any, tasks: Sequence[Task], where: str) -> Asked:
    """Answers per task, a hash of the raw predictions, and whether some are not finite."""
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
    """Convert an error inside a learner to a `LearnerError` with its file and line."""
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
    """Seed the global generators, and restore them afterwards."""
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
