"""The course of a cell, whatever it learns: from its start or checkpoint to its record."""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..filters import ParticleFilter
from ..methods import find_method
from ..methods.settings import SharedSettings
from ..particles import Ensemble
from ..storage import INVALID_STATE
from .records import filter_record, finite, loss_areas
from .snapshots import stacked
from .store import Store, StoreError, versions
from .tensorboard import CellLog


@dataclass(frozen=True)
class Cell:
    """What distinguishes one result from another."""

    benchmark: str
    scenario: str
    preset: str
    method: str
    order_index: int
    order: tuple[int, ...]
    seed: int
    settings: SharedSettings

    @property
    def name(self) -> str:
        parts = self.benchmark, self.scenario, self.preset, self.method
        return "-".join(parts) + f"-order{self.order_index}-seed{self.seed}"

    def describe(self) -> dict[str, Any]:
        """The part of the record that says what was run."""
        return {
            "benchmark": self.benchmark,
            "scenario": self.scenario,
            "preset": self.preset,
            "method": self.method,
            "order_index": self.order_index,
            "order": list(self.order),
            "seed": self.seed,
            "settings": self.settings.flat(find_method(self.method)),
        }


@dataclass
class Progress:
    """How far a cell has come; with the learner's state, all that a checkpoint holds."""

    position: int = 0
    batch: int = 0
    seconds: float = 0.0
    died_at: int | None = None
    scores: dict[str, list[list[float | None]]] = field(default_factory=dict)
    trace: dict[str, list[float]] = field(
        default_factory=lambda: {"step": [], "ess": [], "largest_weight": [], "loss": []}
    )
    plasticity: dict[str, list[float | None]] = field(default_factory=dict)
    snapshots: list[Any] = field(default_factory=list)


class Learned(Protocol):
    """What any course asks of whatever learns."""

    @property
    def filter(self) -> ParticleFilter: ...

    def check(self) -> None:
        """Raise `FloatingPointError` if learning has broken down."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Course(ABC):
    """Runs one cell from the start, or from its checkpoint.

    A stage is (tasks seen so far, steps to come). Subclasses set `learner` and `stages` (and
    `task_names`, where tasks have names) and say how a stage is learned (`_stage` yields wherever a
    checkpoint may be taken and counts `progress.batch`), what follows it, and where the particles
    started; to the record they add what only they know.
    """

    learner: Learned
    stages: list[tuple[list[int], int]]
    task_names: list[str] = []
    log: CellLog | None = None

    def __init__(
        self,
        cell: Cell,
        store: Store,
        *,
        checkpoint_every: float = 60.0,
        tick: Callable[[int], None] = lambda steps: None,
    ) -> None:
        self.cell, self.store = cell, store
        self.checkpoint_every, self.tick = checkpoint_every, tick
        self.progress = Progress()

    def run(self, command: str = "", *, tensorboard: bool = False) -> dict[str, Any]:
        """Learn all tasks; the finished record is in the store, and is returned."""
        begun = saved = time.monotonic()
        self._resume()
        before = self.progress.seconds
        self._begin()
        if tensorboard and self.store.first:
            self._open_log()
        while self.progress.position < len(self.stages):
            seen, count = self.stages[self.progress.position]
            for _ in self._stage(seen, count):
                if self.store.agrees(time.monotonic() - saved > self.checkpoint_every):
                    self.progress.seconds = before + time.monotonic() - begun
                    self._checkpoint()
                    self._log()
                    saved = time.monotonic()
            self._finish_stage(seen)
            self._log()
            self.progress.position += 1
            self.progress.batch = 0
        if self.log is not None:
            self.log.close()
        self.progress.seconds = before + time.monotonic() - begun
        record = {
            "format": 1,
            **self.cell.describe(),
            **self._record(),
            "died_at": self.progress.died_at,
            "versions": versions(),
            "duration": self.progress.seconds,
            "command": command,
        }
        if self.progress.snapshots:
            self.store.write_snapshots(self.cell.name, stacked(self.progress.snapshots))
        self.store.write_cell(self.cell.name, record)
        return record

    @abstractmethod
    def _begin(self) -> None:
        """Before the first stage, and again after a resume: what is not there yet."""

    @abstractmethod
    def _stage(self, seen: list[int], count: int) -> Iterator[None]:
        """Learn the last task of `seen` from step `progress.batch` to `count`."""

    @abstractmethod
    def _finish_stage(self, seen: list[int]) -> None:
        """The last task of `seen` has been learned: consolidate, score, look at the networks."""

    @abstractmethod
    def _initial(self) -> Ensemble:
        """The particles as they were at the start."""

    # ------------------------------------------------------------------ what is found

    def _record(self) -> dict[str, Any]:
        """What was found."""
        progress = self.progress
        areas = loss_areas(progress.trace, [count for _, count in self.stages])
        return {
            **filter_record(self.learner.filter, self._initial()),
            "task_names": self.task_names,
            "scores": progress.scores,
            "trace": {k: [finite(v) for v in values] for k, values in progress.trace.items()},
            "plasticity": {**progress.plasticity, "learning_curve_area": areas},
        }

    def _add_plasticity(self, measured: dict[str, float]) -> None:
        for name, value in measured.items():
            self.progress.plasticity.setdefault(name, []).append(finite(value))

    @contextmanager
    def _may_die(self) -> Iterator[None]:
        """Breaking down (a penalty too strong for its learning rate, say) is a result like any
        other: the networks stay as they were, and the record says so."""
        try:
            yield
        except FloatingPointError:
            self.progress.died_at = self._steps()

    def _check(self) -> None:
        """Ask now whether anything is left; on CUDA the answer may still be on the device."""
        if self.progress.died_at is None:
            with self._may_die():
                self.learner.check()

    # ------------------------------------------------------------------ TensorBoard

    def _open_log(self) -> None:
        folder = self.store.directory / "tensorboard" / self.cell.name
        each = self._steps_each()
        self.log = CellLog(folder, self.task_names, [each * count for _, count in self.stages])
        self._log()

    def _log(self) -> None:
        if self.log is not None:
            self.log.update(self.progress)

    def _steps_each(self) -> int:
        """What one step of a stage counts for in traces."""
        return 1

    # ------------------------------------------------------------------ checkpoints

    def _load_state(self, state: dict[str, Any]) -> None:
        """Make the learner go on from there; `progress` is already where it was."""
        self.learner.load_state_dict(state)

    def _checkpoint(self) -> None:
        self._check()
        progress = {
            f.name: getattr(self.progress, f.name) for f in dataclasses.fields(self.progress)
        }
        state = {**self._identity(), "progress": progress, "learner": self.learner.state_dict()}
        self.store.save_checkpoint(self.cell.name, state)

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be of use."""
        return {"cell": self.cell.describe(), "versions": versions()}

    def _resume(self) -> None:
        state = self.store.load_checkpoint(self.cell.name)
        ours = self._identity()
        try:
            if state is None or any(state.get(key) != value for key, value in ours.items()):
                return
            self.progress = type(self.progress)(**state["progress"])
            self._load_state(state["learner"])
            self.tick(self._steps())
        except INVALID_STATE as error:  # whole, but nothing that was ever written here
            raise StoreError(
                f"the checkpoint of {self.cell.name} makes no sense ({error}): delete "
                f"{self.store.directory / 'checkpoints'}"
            ) from error

    def _steps(self) -> int:
        """Steps since the first task began; tasks may differ in length."""
        before = self.stages[: self.progress.position]
        return sum(count for _, count in before) + self.progress.batch
