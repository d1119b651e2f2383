"""The trials of an audit, each made once, counted, and kept in a file."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .trials import AuditData, Record, Trial, compute

Tell = Callable[[int, int, str], None]


class Session:
    """Makes or finds the trials of an audit.

    `runs.jsonl` in the folder `out` has a line of JSON for every finished trial: a checksum, the
    trial, the data and the version of the learner, and the record. A line that was not written
    whole, because the process was killed, counts for nothing.

    Args:
        data: what is put in order.
        total: number of trials, for the progress.
        progress: called as `progress(done, total, text)` before a trial that is not kept yet.
        out: a new or empty folder, or that of this audit; None keeps nothing.
        key: the version of the learner.
    """

    def __init__(
        self, data: AuditData, total: int, progress: Tell, out: Path | str | None, key: str
    ) -> None:
        self.data = data
        self.total = total
        self.progress = progress
        self.done = 0
        self.about = {"data": data.content, "key": key}
        self.records: dict[str, Record] = {}
        self.path = None if out is None else Path(out) / "runs.jsonl"
        if self.path is not None:
            self._open(self.path)

    def _open(self, path: Path) -> None:
        folder = path.parent
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            if any(not other.name.startswith(".") for other in folder.iterdir()):
                raise ValueError(f"{folder} holds other files and no audit: choose another folder")
            return
        for line in path.read_bytes().split(b"\n"):
            try:
                checksum, name, about, record = json.loads(line)
            except (ValueError, TypeError, RecursionError):
                continue
            if checksum != _checksum([name, about, record]):
                continue
            if about["data"] != self.about["data"]:
                raise ValueError(
                    f"{folder} holds an audit of other data: choose another folder; random data "
                    "need a fixed seed"
                )
            if about != self.about:
                raise ValueError(
                    f"{folder} holds runs of another version of the learner: choose another folder"
                )
            self.records[name] = record

    def record(self, trial: Trial, make: Callable[[], Record]) -> Record:
        """The record of a trial, which is made unless it is kept."""
        name = f"{trial.name} seed {trial.seed} order {self.data.digest(trial.order)}"
        if name not in self.records:
            text = f"{trial.name}, seed {trial.seed}, {self.data.order_name(trial.order)}"
            self.progress(self.done, self.total, text)
            self.records[name] = make()
            if self.path is not None:
                _append(self.path, [name, self.about, self.records[name]])
        self.done += 1
        return self.records[name]

    def run(self, trial: Trial, *, test_predict: bool = False) -> Record:
        """The scores and answers of a learner in one order with one seed; see `compute`."""
        return self.record(trial, lambda: compute(self.data, trial, test_predict=test_predict))


def _append(path: Path, content: list[Any]) -> None:
    # begins a line of its own, because the last one may be torn
    line = "\n" + json.dumps([_checksum(content), *content])
    with path.open("ab") as file:
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def _checksum(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
