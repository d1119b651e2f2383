"""What runs a cell, whatever it learns: from its start or checkpoint to its record."""

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from ..filters.base import ParticleFilter
from ..methods import find_method
from ..methods.learners import ContinualLearner
from ..methods.learners.policy import PolicyLearner
from ..particles import Ensemble
from ..rl import BehaviourCloning
from ..storage import INVALID_STATE
from .cell import Cell
from .evaluation import COMBINES, Snapshot, displacement, finite, loss_areas, plasticity, stacked
from .record import CellRecord, Row
from .store import Store, StoreError, device_name, versions
from .tensorboard import CellLog

T = TypeVar("T")
TRACES = 40  # at most this many points per task at which weights and loss are recorded


@dataclass
class CellProgress:
    """How far a cell has come; with the learner's state, all that a checkpoint holds.

    Of cloning: `scoring`, seconds that do not grow with the data; `shown`, what the expert's own
    episodes on each level so far brought. Of playing: `curves`, returns over environment steps;
    by level `returns`, means over its bins, and `final_returns`, over its last fifth of episodes.
    """

    position: int = 0
    batch: int = 0
    seconds: float = 0.0
    died_at: int | None = None
    scores: dict[str, list[Row]] = field(default_factory=dict)
    trace: dict[str, list[float]] = field(
        default_factory=lambda: {"step": [], "ess": [], "largest_weight": [], "loss": []}
    )
    plasticity: dict[str, Row] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    scoring: float = 0.0
    shown: Row = field(default_factory=list)
    curves: dict[str, Row] = field(default_factory=lambda: {"step": [], "return": []})
    returns: list[float] = field(default_factory=list)
    final_returns: Row = field(default_factory=list)


class CellRunner(ABC):
    """Runs one cell from the start, or from its checkpoint.

    A stage is (tasks seen so far, steps to come). `tick` hears of steps, `ended` of the phases of a
    cell: "beginning", then for every stage "learning" and "finish".

    Subclasses set `learner`, `stages` and `task_names` and say how a stage is learned (`_stage`
    yields wherever a checkpoint may be taken and counts `progress.batch`), what follows it, and
    where the particles started; to the record they add what only they know. `combines`: in which
    ways they score.
    """

    combines: tuple[str, ...] = COMBINES
    learner: ContinualLearner | BehaviourCloning | PolicyLearner
    stages: list[tuple[list[int], int]]
    task_names: list[str]
    log: CellLog | None = None

    def __init__(
        self,
        cell: Cell,
        store: Store,
        *,
        checkpoint_every: float = 60.0,
        tick: Callable[[int], None] = lambda steps: None,
        ended: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self.cell, self.store = cell, store
        self.checkpoint_every, self.tick, self.ended = checkpoint_every, tick, ended
        self.progress = CellProgress()
        self.opened = ExitStack()
        self._since = time.monotonic()

    def run(self, command: str = "", *, tensorboard: bool = False) -> CellRecord | None:
        """Learn all tasks; the finished record is in the store, and is returned."""
        with self.opened:
            self._learn_all(tensorboard)
            return self._leave(command)

    def _learn_all(self, tensorboard: bool) -> None:
        saved = time.monotonic()
        self._resume()
        self.progress.scores = self.progress.scores or {name: [] for name in self.combines}
        self._begin()
        self.ended("beginning")
        if tensorboard and self.store.first:
            folder = self.store.directory / "tensorboard" / self.cell.name
            self.log = CellLog(folder, self.task_names, [count for _, count in self.stages])
            self.opened.callback(self.log.close)
        self._log()
        while self.progress.position < len(self.stages):
            seen, count = self.stages[self.progress.position]
            for _ in self._stage(seen, count):
                if self.store.agrees(time.monotonic() - saved > self.checkpoint_every):
                    self._checkpoint()
                    self._log()
                    saved = time.monotonic()
            self.ended("learning")
            self._check()
            self._finish_stage(seen)
            self.ended("finish")
            self._log()
            self.progress.position += 1
            self.progress.batch = 0

    def _leave(self, command: str) -> CellRecord | None:
        """Write what was found, and return it."""
        self._clock()
        record = dataclasses.replace(self._record(), command=command)
        if self.progress.snapshots:
            self.store.write_snapshots(self.cell.name, stacked(self.progress.snapshots))
        self.store.write_cell(self.cell.name, record)
        return record

    @abstractmethod
    def plan(self, settings: Any) -> list[tuple[list[int], int]]:
        """The stages of a cell with these settings."""

    def _begin(self) -> None:  # noqa: B027  (most score what was not learned, playing does not)
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

    def _record(self) -> CellRecord:
        """What was found; the parts that only some courses have are added by them."""
        progress, filter = self.progress, self.learner.filter
        areas = loss_areas(progress.trace, [count for _, count in self.stages])
        return CellRecord(
            **self._facts(),
            described=find_method(self.cell.method).described(),
            task_names=self.task_names,
            scores=progress.scores,
            trace={name: [*values] for name, values in progress.trace.items()},
            plasticity={**progress.plasticity, "learning_curve_area": areas},
            particles=filter.particles.n,
            log_evidence=float(filter.log_evidence),
            temperature=float(filter.temperature),
            ess=float(filter.ess),
            moved=float(np.mean(displacement(filter.networks, self._initial()))),
        )

    def _facts(self) -> Any:
        """The cell, and what every record tells of how it went."""
        filter = self.learner.filter
        return {
            **self.cell.describe(),
            "alive": int(filter.alive.sum()),
            "died_at": self.progress.died_at,
            "device": device_name(filter.particles.device),
            "versions": versions(),
            "duration": self.progress.seconds,
        }

    def _add_plasticity(self, seen: Tensor, weights: list[Tensor]) -> None:
        for name, value in plasticity(seen, weights).items():
            self.progress.plasticity.setdefault(name, []).append(finite(value))

    def _trace(
        self, step: int, weights: Tensor, losses: Tensor, ess: Tensor | float, **more: float
    ) -> None:
        """One more moment; its loss is sum_i w_i L_i, in which the dead do not count."""
        loss = ParticleFilter.average(losses.double(), weights)
        known = {"step": step, "ess": float(ess), "largest_weight": float(weights.max())}
        for name, value in {**known, "loss": float(loss), **more}.items():
            self.progress.trace.setdefault(name, []).append(value)

    def _attempt(self, step: Callable[[], T]) -> T | None:
        """What a step gives; None once no network is left.

        Breaking down (a penalty too strong for its learning rate, say) is a result like any other:
        the networks stay as they were, and the record says so.
        """
        if self.progress.died_at is None:
            try:
                return step()
            except FloatingPointError:
                self.progress.died_at = self._steps()
        return None

    def _check(self) -> None:
        """Ask now whether anything is left; on CUDA the answer may still be on the device."""
        self._attempt(self.learner.check)

    def _log(self) -> None:
        if self.log is not None:
            self.log.update(self.progress)

    # ------------------------------------------------------------------ checkpoints

    def _load_state(self, state: Any) -> None:
        """Make the learner go on from there; `progress` is already where it was."""
        self.learner.load_state_dict(state)

    def _clock(self) -> None:
        before, self._since = self._since, time.monotonic()
        self.progress.seconds += self._since - before

    def _checkpoint(self) -> None:
        self._clock()
        self._check()
        state = {
            **self._identity(),
            "cell": self.cell.describe(),
            "progress": vars(self.progress),
            "learner": self.learner.state_dict(),
        }
        self.store.save_checkpoint(self.cell.name, state)

    def _identity(self) -> dict[str, object]:
        """What must be the same, beside the cell, for a checkpoint to be of use."""
        return {"versions": versions()}

    def _saved(self, cell: Cell) -> Any:
        """The checkpoint of this cell, or of a part of it, that has come furthest."""

        def come(state: Mapping[str, Any]) -> tuple[int, int] | None:
            """None if it is not of the cell, as it would run now."""
            if any(state.get(key) != value for key, value in self._identity().items()):
                return None
            if cell.differs(state["cell"]) is not None:
                return None
            return state["progress"]["position"], state["progress"]["batch"]

        return self.store.load_checkpoint(cell.name, come)

    def _resume(self) -> None:
        try:
            state = self._saved(self.cell)
            if state is None:
                return
            self.progress = CellProgress(**state["progress"])
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
