"""The runs of an audit: cells of a grid, each one learner in one order from one seed."""

from __future__ import annotations

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
from numpy.typing import NDArray
from torch import Tensor

from ..experiments.engine import Tick
from ..scenarios import Task
from ..storage import Directory, versions
from .decomposition import Array
from .learners import MakeLearner

Labels = NDArray[np.int64]


class LearnerError(ValueError):
    """The audited learner failed, or is none; the message says where."""


class Place(NamedTuple):
    """Which run of an audit."""

    learner: str
    seed: int
    order: int

    @property
    def name(self) -> str:
        return f"{quote(self.learner, safe=' +()')}-order{self.order}-seed{self.seed}"

    @property
    def title(self) -> str:
        return f"{self.learner} seed {self.seed} order {self.order}"

    @property
    def slow(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class Run:
    """What one learner predicts after it has learned all tasks in one order."""

    labels: Labels
    """`[B]`, the test samples of all tasks one after another."""
    bits: str
    """A hash of what `predict` gave in the end."""
    broken: bool
    """Whether some of that was not finite."""
    matrix: Array
    """`[T, T]`: accuracy on task t after k + 1 tasks."""
    seconds: float


class Kept(Directory):
    """The runs of an audit in a folder: DIR/cells/NAME.json."""

    def prepare(self, *folders: str) -> None:
        super().prepare(*(folders or ("cells",)))


class Memory(Directory):
    """Of an audit without a folder: runs are kept as long as the audit goes on."""

    def __init__(self) -> None:
        super().__init__("memory")
        self._cells: dict[str, Any] = {}

    def prepare(self, *folders: str) -> None:
        pass

    @contextmanager
    def lock(self) -> Iterator[str]:
        yield ""

    def finished(self) -> dict[str, Any]:
        return self._cells

    def tidy(self, name: str, *, finished: bool) -> None:
        pass

    def write_cell(self, name: str, cell: Any) -> None:
        self._cells[name] = cell


@dataclass(frozen=True)
class AuditWork:
    """How the runs of an audit are computed.

    Args:
        makers: per learner `make_learner`.
        made_by: per learner what its runs depend on beside order and seed, ready for JSON. Runs
            that were made by anything else are refused, never mixed in.
        orders: the tasks' numbers in turn.
    """

    makers: Mapping[str, MakeLearner]
    made_by: Mapping[str, dict[str, Any]]
    tasks: Sequence[Task]
    orders: Sequence[Sequence[int]]

    device = torch.device("cpu")

    def prepare(self, say: Callable[[str], None]) -> None:
        pass

    def memory(self) -> int:
        return 0

    def compute(self, place: Place, store: Directory, tick: Tick) -> None:
        with _generators_set_by(place.seed):
            run = _run(place, self.makers[place.learner], self.tasks, self.orders[place.order])
        record = {**self._identity(place), **_encode(run), "versions": versions()}
        store.write_cell(place.name, record)

    def read(self, record: dict[str, Any]) -> Run:
        """What a kept run holds."""
        samples = sum(len(task.y_test) for task in self.tasks)
        return _decode(record, samples, len(self.tasks))

    def _identity(self, place: Place) -> dict[str, Any]:
        return {
            "learner": place.learner,
            "seed": place.seed,
            "order_index": place.order,
            "order": list(self.orders[place.order]),
            "maker": self.made_by[place.learner],
        }

    def refuse(
        self, directory: Path, name: str, record: dict[str, Any], cell: Place | None
    ) -> str | None:
        """Why a run does not belong to this audit."""
        elsewhere = "choose another folder (--out)"
        if "maker" not in record or (cell is not None and record["learner"] != cell.learner):
            return f"{directory} holds no audit: {elsewhere}"
        if cell is None:  # another learner's, or of more orders
            return None
        ours = self._identity(cell)
        if record["maker"].get("tasks") != ours["maker"]["tasks"]:
            return (
                f"{directory} holds an audit on other tasks: {elsewhere}; tasks that are drawn at "
                "random must be drawn with a fixed seed"
            )
        if record["maker"] != ours["maker"]:
            return f"{directory} holds runs of another version of {cell.learner}: {elsewhere}"
        if any(record[key] != ours[key] for key in ("order", "order_index", "seed")):
            return f"{directory} holds runs of other orders of {cell.learner}: {elsewhere}"
        self.read(record)  # raises if it makes no sense
        return None


def fingerprint(tasks: Sequence[Task]) -> str:
    """Of names and all data: an audit goes on only with the tasks it began with."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(repr(task.name).encode())
        for tensor in (task.x, task.y, task.x_test, task.y_test):
            array = np.ascontiguousarray(tensor.detach().cpu().numpy())
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(array.data)
    return digest.hexdigest()


def _run(
    place: Place, make_learner: MakeLearner, tasks: Sequence[Task], order: Sequence[int]
) -> Run:
    """Make a learner, teach it the tasks in this order, and ask it about all of them each time."""
    begun, name = time.monotonic(), place.learner
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


def _encode(run: Run) -> dict[str, Any]:
    packed = zlib.compress(run.labels.astype("<i8").tobytes())
    return {
        "labels": base64.b64encode(packed).decode(),
        "bits": run.bits,
        "broken": run.broken,
        "matrix": run.matrix.tolist(),
        "duration": run.seconds,
    }


def _decode(record: dict[str, Any], samples: int, tasks: int) -> Run:
    packed = base64.b64decode(record["labels"])
    # no more than there should be, whatever a small file unpacks to
    try:
        labels = np.frombuffer(zlib.decompressobj().decompress(packed, 8 * samples + 1), "<i8")
    except zlib.error as error:
        raise ValueError(f"labels: {error}") from None
    return Run(
        labels=labels.astype(np.int64).reshape(samples),
        bits=str(record["bits"]),
        broken=bool(record["broken"]),
        matrix=np.array(record["matrix"], float).reshape(tasks, tasks),
        seconds=float(record["duration"]),
    )
