"""Finished runs of an audit, each in a file of its own: what was stopped goes on from there."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ..scenarios import Task
from ..storage import INVALID_STATE, Directory, StoreError, versions
from .decomposition import Array

Labels = NDArray[np.int64]


class Place(NamedTuple):
    """Which run of an audit."""

    learner: str
    seed: int
    order: int

    @property
    def file_name(self) -> str:
        return f"{quote(self.learner, safe=' +()')}-order{self.order}-seed{self.seed}"


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


class FinishedRuns:
    """Keeps the runs of an audit in a folder, or without one nowhere.

    Args:
        folder: where `cells/*.json` lie.
        makers: per learner what its runs depend on beside order and seed, ready for JSON. Runs
            that were made by anything else are refused, never mixed in.
        orders: the tasks' numbers in turn.
        samples: how many test samples all tasks have together.
    """

    def __init__(
        self,
        folder: Path | str | None,
        makers: Mapping[str, dict[str, Any]],
        orders: Sequence[Sequence[int]],
        samples: int,
    ) -> None:
        self._store = None if folder is None else Directory(folder)
        self._makers, self._orders, self._samples = makers, orders, samples

    @contextmanager
    def opened(self, places: Iterable[Place]) -> Iterator[dict[Place, Run]]:
        """The runs that are there already; the folder is ours until the end of the block."""
        if self._store is None:
            yield {}
            return
        self._store.prepare("cells")
        with self._store.lock():
            yield self._read(self._store, places)

    def keep(self, place: Place, run: Run) -> None:
        """Write a finished run: wholly or not at all."""
        if self._store is not None:
            record = {**self._identity(place), **_encode(run), "versions": versions()}
            self._store.write_cell(place.file_name, record)

    def _read(self, store: Directory, places: Iterable[Place]) -> dict[Place, Run]:
        records, runs = store.finished(), {}
        for place in places:
            record = records.get(place.file_name)
            if record is None:
                store.set_aside(place.file_name)
                continue
            try:
                self._require_same(store, place, record)
                runs[place] = _decode(record, self._samples, len(self._orders[place.order]))
            except (
                *INVALID_STATE,
                zlib.error,
            ) as error:  # whole, but nothing that was written here
                path = store.cell_path(place.file_name)
                raise StoreError(f"{path} makes no sense ({error}): delete it") from None
        return runs

    def _identity(self, place: Place) -> dict[str, Any]:
        return {
            "learner": place.learner,
            "seed": place.seed,
            "order_index": place.order,
            "order": list(self._orders[place.order]),
            "maker": self._makers[place.learner],
        }

    def _require_same(self, store: Directory, place: Place, record: dict[str, Any]) -> None:
        ours, theirs = self._identity(place), record
        if theirs.get("learner") != place.learner:
            raise StoreError(f"{store.directory} holds no audit: choose another folder (--out)")
        if theirs["maker"].get("tasks") != ours["maker"]["tasks"]:
            raise StoreError(
                f"{store.directory} holds an audit on other tasks: choose another folder (--out); "
                "tasks that are drawn at random must be drawn with a fixed seed"
            )
        if theirs["maker"] != ours["maker"] or theirs["order"] != ours["order"]:
            what = "another version" if theirs["order"] == ours["order"] else "other orders"
            raise StoreError(
                f"{store.directory} holds runs of {what} of {place.learner}: choose another folder "
                "(--out)"
            )


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
    labels = np.frombuffer(zlib.decompressobj().decompress(packed, 8 * samples + 1), "<i8")
    return Run(
        labels=labels.astype(np.int64).reshape(samples),
        bits=str(record["bits"]),
        broken=bool(record["broken"]),
        matrix=np.array(record["matrix"], float).reshape(tasks, tasks),
        seconds=float(record["duration"]),
    )
