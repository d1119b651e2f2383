"""A cell of supervised learning: one method learns the tasks in one order from one seed."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..methods import Setup, find_method
from ..methods.learners import ContinualLearner
from ..methods.settings import Settings
from ..particles import Ensemble
from ..scenarios import Scenario
from .benchmarks import find_benchmark
from .cell import Cell
from .evaluation import COMBINES, SAMPLES, score_task, snapshot
from .record import CellRecord
from .runner import TRACES, CellProgress, CellRunner
from .store import Store


class SupervisedRunner(CellRunner):
    """A cell of supervised learning."""

    learner: ContinualLearner

    def __init__(self, cell: Cell, scenario: Scenario, store: Store, **options: Any) -> None:
        super().__init__(cell, store, **options)
        assert isinstance(cell.settings, Settings)
        self.settings = cell.settings
        self.scenario, self.task_names = scenario, scenario.task_names
        # one cell's worth of pictures is enough, and none where the way to the end is not asked for
        first = cell.method == "wpf" and cell.order_index == cell.seed == 0
        self.snapshots = first and cell.settings.score_after == "each"
        network = find_benchmark(cell.benchmark).network(scenario, cell.settings)
        self.setup = Setup(scenario, cell.settings, network, cell.seed, store.group)
        self.learner = self._build()
        self.stages = self.plan(cell.settings)
        self._pending: list[tuple[int, Any]] = []  # step infos not yet fetched from the device
        self._scored_at = -1
        self._parts = {part.order[0]: part for part in cell.parts()}

    def _build(self) -> ContinualLearner:
        learner = find_method(self.cell.method).build(self.setup)
        if not isinstance(learner, ContinualLearner):
            kind = type(learner).__name__
            raise ValueError(f"the method {self.cell.method!r} must build a learner, got {kind}")
        return learner

    # ------------------------------------------------------------------ from task to task

    def _begin(self) -> None:
        if not self.progress.scores[COMBINES[0]]:
            self._score([])
            self._snapshot()

    def _stage(self, seen: list[int], count: int) -> Iterator[None]:
        self.learner.begin_task(seen)
        self._joined = self.progress.batch == 0 and self._join(seen[-1], count)
        for batch in () if self._joined else self._batches(seen):
            self._learn(batch, count)
            yield

    def _join(self, task: int, count: int) -> bool:
        """Take over a task that another process has learned, where one has."""
        progress, part = self.progress, self._parts.get(task)
        state = None if part is None else self._saved(part)
        if state is None or not state["progress"]["position"]:
            return False
        theirs, before = CellProgress(**state["progress"]), self._steps()
        progress.batch, progress.seconds = count, progress.seconds + theirs.seconds
        if progress.died_at is not None:
            return True
        theirs.trace["step"] = [before + step for step in theirs.trace["step"]]
        for name, values in theirs.trace.items():
            progress.trace[name] += values
        if theirs.died_at is not None:
            progress.died_at = before + theirs.died_at
            return True
        other: Any = self._build()
        other.load_state_dict(state["learner"])
        self._attempt(lambda: self.learner.add(other))  # type: ignore[attr-defined]
        return True

    def plan(self, settings: Settings) -> list[tuple[list[int], int]]:
        """(tasks seen so far, batches to come) for every stage; joint training has one."""
        order, joint = list(self.cell.order), self.learner.joint
        stages = [order] if joint else [order[: k + 1] for k in range(len(order))]
        count = self.scenario.n_batches
        return [(s, count(s if joint else s[-1], **self._cut(settings, s))) for s in stages]

    def _cut(self, settings: Settings, seen: list[int]) -> Any:
        """How a stage's data is cut into batches."""
        iterations = settings.iterations
        if iterations is not None and self.learner.joint:
            iterations *= len(seen)
        sizes = {"batch_size": settings.batch_size, "epochs": settings.epochs}
        return {**sizes, "iterations": iterations}

    def _batches(self, seen: list[int]) -> Iterator[tuple[Tensor, ...]]:
        """(x, y), and the task of each sample where tasks are mixed."""
        options = self._cut(self.settings, seen)
        options["seed"] = self.settings.seed_of_batches(self.cell.seed)
        options["start"] = self.progress.batch
        if self.learner.joint:
            return self.learner.scenario.joint_batches(seen, **options)
        return self.learner.scenario.batches(seen[-1], **options)

    def _learn(self, batch: tuple[Tensor, ...], count: int) -> None:
        progress = self.progress
        progress.batch += 1
        self.tick(1)
        info = self._attempt(lambda: self.learner.learn(*batch))
        every = math.ceil(count / TRACES)
        if info is not None and (progress.batch % every == 0 or progress.batch == count):
            self._pending.append((self._steps(), info))

    def _finish_stage(self, seen: list[int]) -> None:
        self._end_task()
        self._score(seen)
        if self.learner.joint:  # there is no intermediate row to speak of
            for rows in self.progress.scores.values():
                rows[1:1] = [[None for _ in seen] for _ in seen[1:]]
        some = self.learner.scenario.test_set(seen[-1])[0][:SAMPLES]
        self._add_plasticity(*self.learner.representation(some))
        self._snapshot()

    def _end_task(self) -> None:
        info = None if self._joined else self._attempt(self.learner.end_task)
        if info is not None:
            self._pending.append((self._steps(), info))
        self._fetch()

    def _score(self, seen: list[int]) -> None:
        """One more row of R, in the columns of task identities."""
        self.learner.seen = list(seen)
        tasks = len(self.scenario)
        if self.settings.score_after == "last" and len(seen) < tasks:
            for rows in self.progress.scores.values():
                rows.append([None] * tasks)
            return
        size, died = self.settings.test_batch, self.progress.died_at
        # where nobody was left at the last row already, this row is the same (in the domain
        # setting; in the others the classes to choose from grow)
        if died is None or self._scored_at < died or self.scenario.kind != "domain":
            self.last = [score_task(self.learner, t, size) for t in range(tasks)]
        self._scored_at = self._steps()
        for name in COMBINES:
            self.progress.scores[name].append([score.accuracy[name] for score in self.last])

    # ------------------------------------------------------------------ traces and snapshots

    def _fetch(self) -> None:
        """Bring the pending step infos to the host, all at once."""
        for step, info in self._pending:
            self._trace(step, info.log_weights.exp(), info.loss_before, info.ess)
        self._pending = []

    def _snapshot(self) -> None:
        if self.snapshots:
            self.progress.snapshots.append(snapshot(self.learner.filter, self._steps()))

    # ------------------------------------------------------------------ checkpoint and record

    def _checkpoint(self) -> None:
        self._fetch()
        super()._checkpoint()

    def _load_state(self, state: Any) -> None:
        if self.progress.position < len(self.stages):
            self.learner.begin_task(self.stages[self.progress.position][0])
        super()._load_state(state)

    def _initial(self) -> Ensemble:
        return self._build().filter.particles

    def _record(self) -> CellRecord:
        names = ("nll", "ece", "predictions")
        found: Any = {name: [getattr(score, name) for score in self.last] for name in names}
        return replace(super()._record(), data=self.scenario.digest, **found)

    def _identity(self) -> dict[str, object]:
        return {**super()._identity(), "data": self.scenario.digest}


class TaskRunner(SupervisedRunner):
    """A `Part`: one task, for the cell to take over."""

    def _begin(self) -> None:
        """There is nothing to score yet."""

    def _finish_stage(self, seen: list[int]) -> None:
        self._end_task()

    def _leave(self, command: str) -> None:
        self._checkpoint()
