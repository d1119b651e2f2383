"""Cells of classification: one method learns the tasks in one order from one seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from orderless.ensemble import Ensemble

from ..methods import find_method
from ..methods.learners import ContinualLearner
from ..suites.scenario import Scenario
from .runner import TRACES, CellRunner
from .scoring import COMBINES, SAMPLES, score_task, snapshot


class SupervisedRunner(CellRunner):
    """Runs a cell of classification."""

    learner: ContinualLearner
    tasks: Scenario

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # snapshots of one cell are enough, and need the scores after every task
        method = find_method(self.cell.method)
        first = self.cell.order_index == self.cell.seed == 0
        plain = method.weighted and method.base is None
        self.snapshots = first and plain and self.settings.score_after == "each"
        self._pending: list[tuple[int, Any]] = []  # step infos not yet fetched from the device
        self._scored_at = -1

    def _stage(self, seen: list[int], count: int) -> Iterator[None]:
        self.learner.begin_task(seen)
        for batch in self._batches(seen):
            self._learn(batch, count)
            yield

    def _count(self, seen: list[int]) -> int:
        learned = seen if self.learner.joint else seen[-1]
        return self.tasks.n_batches(learned, **self._cut(seen))

    def _cut(self, seen: list[int]) -> dict[str, Any]:
        """The options that divide a stage's data into batches."""
        settings = self.settings
        steps = settings.iterations
        if steps is not None and self.learner.joint:
            steps = len(seen) * steps
        return {"batch_size": settings.batch_size, "epochs": settings.epochs, "iterations": steps}

    def _batches(self, seen: list[int]) -> Iterator[tuple[Tensor, ...]]:
        """Batches (x, y), and with joint training the task of each sample."""
        options = self._cut(seen)
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
        info = self._attempt(self.learner.end_task)
        if info is not None:
            self._pending.append((self._steps(), info))
        self._fetch()
        self._score(seen)
        if self.learner.joint:  # there are no rows between the first and the last
            for rows in self.progress.scores.values():
                rows[1:1] = [[None for _ in seen] for _ in seen[1:]]
        some = self.learner.scenario.test_set(seen[-1])[0][:SAMPLES]
        self._add_plasticity(*self.learner.representation(some))

    def _score(self, seen: list[int]) -> None:
        self.learner.seen = list(seen)
        tasks = len(self.tasks)
        if self.settings.score_after == "last" and len(seen) < tasks:
            for rows in self.progress.scores.values():
                rows.append([None] * tasks)
            return
        if self.snapshots:
            self.progress.snapshots.append(snapshot(self.learner.filter, self._steps()))
        size = self.settings.test_batch
        died = self.progress.died_at
        # if the networks had died before the last row, this row is the same (in the domain
        # scenario; in the others the classes to choose from grow)
        if died is None or self._scored_at < died or self.tasks.kind != "domain":
            self.last = [score_task(self.learner, task, size) for task in range(tasks)]
        self._scored_at = self._steps()
        for name in COMBINES:
            self.progress.scores[name].append([score.correct[name] for score in self.last])

    def _fetch(self) -> None:
        """Copy the pending step infos from the device to the trace."""
        for step, info in self._pending:
            self._trace(step, info.log_weights.exp(), info.loss_before, info.ess)
        self._pending = []

    def _checkpoint(self) -> None:
        self._fetch()
        super()._checkpoint()

    def _load_state(self, state: Any) -> None:
        if self.progress.position < len(self.stages):
            self.learner.begin_task(self.stages[self.progress.position][0])
        super()._load_state(state)

    def _initial(self) -> Ensemble:
        return find_method(self.cell.method).build(self.setup).filter.particles

    def _record(self, command: str) -> dict[str, Any]:
        names = ("nll", "ece", "predictions")
        found = {name: [getattr(score, name) for score in self.last] for name in names}
        return {**super()._record(command), **found}
