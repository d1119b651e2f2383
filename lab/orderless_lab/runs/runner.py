"""Run one cell to its record: the loop over tasks, and checkpoints. Subclasses learn the tasks."""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from orderless.ensemble import Ensemble
from orderless.errors import UserError
from orderless.filters import ParticleFilter
from orderless.io import INVALID_STATE

from .. import suites  # a suite names its runner: found when a cell runs
from ..methods.registry import find_method
from ..methods.setup import Setup
from ..plasticity import plasticity
from .cell import Cell, CellRecord, Row
from .store import Store, StoreError, as_json, device_name, versions

T = TypeVar("T")
TRACES = 40  # at most this many points per task at which weights and loss are recorded
SAMPLES = 512  # for the measurement of plasticity


@dataclass
class CellProgress:
    """The progress of a cell; a checkpoint holds it and the learner's state."""

    position: int = 0
    batch: int = 0
    seconds: float = 0.0
    died_at: int | None = None
    scores: dict[str, list[Row]] = field(default_factory=dict)
    trace: dict[str, list[float]] = field(
        default_factory=lambda: {"step": [], "ess": [], "largest_weight": [], "loss": []}
    )
    plasticity: dict[str, Row] = field(default_factory=dict)


class CellRunner(ABC):
    """Runs one cell from its start or its checkpoint.

    A stage is (tasks seen so far, number of steps); its last task is learned. `tick` is called with
    numbers of steps.
    """

    setup_type: ClassVar[type[Setup]] = Setup
    progress_type: ClassVar[type[CellProgress]] = CellProgress
    progress: Any  # of the type `progress_type`
    learner: Any

    def __init__(
        self,
        cell: Cell,
        tasks: Any,
        store: Store,
        *,
        checkpoint_every: float = 60.0,
        tick: Callable[[int], None] = lambda steps: None,
    ) -> None:
        self._since = time.monotonic()
        self.cell = cell
        self.tasks = tasks
        self.store = store
        self.settings: Any = cell.settings
        self.checkpoint_every = checkpoint_every
        self.tick = tick
        self.suite = suites.find_suite(cell.benchmark)
        self.seed = cell.settings.seed_of(cell.seed, cell.order_index)
        network = self.suite.network(tasks, cell.settings)
        self.setup = self.setup_type(tasks, cell.settings, network, self.seed)
        self.learner = find_method(cell.method).build(self.setup)
        if not hasattr(self.learner, "filter"):
            kind = type(self.learner).__name__
            raise UserError(f"the method {cell.method!r} must build a learner, got {kind}")
        parameters = self.learner.filter.particles.parameters()
        self._start = [parameter.detach().to("cpu", copy=True) for parameter in parameters]
        self._rates = [float(group["lr"]) for group in self._groups()]
        self.stages = self._plan()
        self.progress = self.progress_type()
        self.opened = ExitStack()

    def run(self, command: str = "") -> CellRecord:
        """Learn all tasks, write the record to the store and return it."""
        with self.opened:
            saved = time.monotonic()
            self._resume()
            progress = self.progress
            progress.scores = progress.scores or {name: [] for name in self.suite.scores}
            if [] in progress.scores.values():  # not so if a resumed cell has begun
                self._score([])
            while progress.position < len(self.stages):
                seen, count = self.stages[progress.position]
                self._set_rates()
                for _ in self._stage(seen, count):
                    if time.monotonic() - saved > self.checkpoint_every:
                        self._checkpoint()
                        saved = time.monotonic()
                self._attempt(self.learner.check)  # on CUDA, a step may not have been checked yet
                self._finish_stage(seen)
                progress.position += 1
                progress.batch = 0
            return self._leave(command)

    def _leave(self, command: str) -> CellRecord:
        """Write the record."""
        self._clock()
        record = CellRecord.model_validate(as_json(self._record(command)))
        self.store.write_cell(self.cell.name, record)
        return record

    def _plan(self) -> list[tuple[list[int], int]]:
        """The stages of the cell; joint training has one."""
        order = list(self.cell.order)
        first = len(order) if getattr(self.learner, "joint", False) else 1
        stages = [order[:end] for end in range(first, len(order) + 1)]
        return [(seen, self._count(seen)) for seen in stages]

    def _groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the filter's optimizer, if it has one."""
        return getattr(getattr(self.learner.filter, "optimizer", None), "param_groups", [])

    def _set_rates(self) -> None:
        """Set the learning rates of a stage: one that falls gives every task about equal say."""
        if self.settings.schedule == "1/task":
            for group, rate in zip(self._groups(), self._rates, strict=True):
                group["lr"] = rate / (self.progress.position + 1)

    @abstractmethod
    def _count(self, seen: list[int]) -> int:
        """The number of steps of a stage."""

    def _score(self, seen: list[int]) -> None:  # noqa: B027  (optional)
        """Add a row to R, whose columns are the tasks by number."""

    @abstractmethod
    def _stage(self, seen: list[int], count: int) -> Iterator[None]:
        """Learn the last task of `seen` from step `progress.batch`, which it counts, to `count`.

        Yields wherever a checkpoint may be written.
        """

    def _finish_stage(self, seen: list[int]) -> None:
        """Consolidate the last task of `seen`, score, and measure plasticity."""
        self._score(seen)

    def _record(self, command: str) -> dict[str, Any]:
        """The fields of the record."""
        progress = self.progress
        filter = self.learner.filter
        areas = loss_areas(progress.trace, [count for _, count in self.stages])
        return {
            **self.cell.describe(),
            "described": find_method(self.cell.method).described(),
            "data": self._data(),
            "task_names": self.tasks.task_names,
            "unit": self.suite.unit,
            "scores": progress.scores,
            "trace": progress.trace,
            "plasticity": {**progress.plasticity, "learning_curve_area": areas},
            "particles": filter.particles.n,
            "log_evidence": float(filter.log_evidence),
            "temperature": float(filter.temperature),
            "ess": float(filter.ess),
            "moved": float(np.mean(displacement(filter.networks, self._start))),
            "alive": int(filter.alive.sum()),
            "died_at": progress.died_at,
            "device": device_name(filter.particles.device),
            "versions": versions(),
            "duration": progress.seconds,
            "command": command,
        }

    def _data(self) -> str | None:
        """A checksum of the data, where it is not a published data set."""
        return getattr(self.tasks, "digest", None)

    def _add_plasticity(self, seen: Tensor, weights: list[Tensor]) -> None:
        for name, value in plasticity(seen, weights).items():
            self.progress.plasticity.setdefault(name, []).append(finite(value))

    def _trace(
        self, step: int, weights: Tensor, losses: Tensor, ess: Tensor | float, **more: float
    ) -> None:
        """Add a point to the trace; its loss is sum_i w_i L_i over the particles alive."""
        loss = ParticleFilter.average(losses.double(), weights)
        known = {"step": step, "ess": float(ess), "largest_weight": float(weights.max())}
        for name, value in {**known, "loss": float(loss), **more}.items():
            self.progress.trace.setdefault(name, []).append(value)

    def _attempt(self, step: Callable[[], T]) -> T | None:
        """The result of a step; None once no network is finite.

        Divergence, such as by a penalty too strong for the learning rate, is a valid result: the
        networks keep their last finite state, and the record has the step in `died_at`.
        """
        if self.progress.died_at is None:
            try:
                return step()
            except FloatingPointError:
                self.progress.died_at = self._steps()
        return None

    def _load_state(self, state: Any) -> None:
        """Load the learner's state; `progress` is already loaded."""
        self.learner.load_state_dict(state)

    def _clock(self) -> None:
        before = self._since
        self._since = time.monotonic()
        self.progress.seconds += self._since - before

    def _checkpoint(self) -> None:
        self._clock()
        self._attempt(self.learner.check)
        state = {
            **self._identity(),
            "cell": self.cell.describe(),
            "progress": vars(self.progress),
            "learner": self.learner.state_dict(),
        }
        self.store.save_checkpoint(self.cell.name, state)

    def _identity(self) -> dict[str, object]:
        """What a checkpoint must have in common with this run, besides the cell."""
        return {"versions": versions(), "data": self._data()}

    def _saved(self) -> Any:
        """The latest checkpoint of this cell."""

        def come(state: Mapping[str, Any]) -> tuple[int, int] | None:
            """None if it is of another cell, of other data or by other versions."""
            other = any(state.get(key) != value for key, value in self._identity().items())
            if other or self.cell.differs(state["cell"]) is not None:
                return None
            return state["progress"]["position"], state["progress"]["batch"]

        return self.store.load_checkpoint(self.cell.name, come)

    def _resume(self) -> None:
        try:
            state = self._saved()
            if state is None:
                return
            self.progress = self.progress_type(**state["progress"])
            self._load_state(state["learner"])
            self.tick(self._steps())
        except INVALID_STATE as error:  # intact, but not written by this package
            raise StoreError(
                f"the checkpoint of {self.cell.name} makes no sense ({error}): delete "
                f"{self.store.directory / 'checkpoints'}"
            ) from error

    def _steps(self) -> int:
        """Steps since the first task began; tasks may differ in length."""
        before = self.stages[: self.progress.position]
        return sum(count for _, count in before) + self.progress.batch


@torch.no_grad()
def displacement(particles: Ensemble, initial: Iterable[Tensor]) -> list[float]:
    """|x_i - x_i(0)| / |x_i(0)| of each particle, even if it now descends from another one."""
    moved = []
    length = []
    for now, then in zip(particles.parameters(), initial, strict=True):
        start = then.to(now.device).double()
        moved.append((now.double() - start).square().flatten(1).sum(1))
        length.append(start.square().flatten(1).sum(1))
    return (sum(moved) / sum(length)).sqrt().tolist()  # type: ignore[union-attr]


def loss_areas(trace: dict[str, list[float]], counts: list[int]) -> list[float | None]:
    """Mean training loss over each task: the area under its learning curve, per step."""
    steps = np.array(trace["step"])
    losses = np.array(trace["loss"])
    ends = np.cumsum([0, *counts])
    parts = [losses[(steps > a) & (steps <= b)] for a, b in itertools.pairwise(ends)]
    return [finite(float(part.mean())) if len(part) else None for part in parts]


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
