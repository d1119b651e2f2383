"""Cells of classification: one method learns the tasks in one order from one seed."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderless import metrics
from orderless.filters import ParticleFilter, Predictor

from ..methods.learners import ContinualLearner
from ..methods.registry import find_method
from ..suites.scenario import Scenario
from .cell import CellRecord
from .runner import SAMPLES, TRACES, CellProgress, CellRunner

COMBINES = ("particles", "logits", "probs")  # ways of combining particles, see `count_correct`
PROJECTION = 64  # dimensions of a projected position


@dataclass
class SupervisedProgress(CellProgress):
    snapshots: list[dict[str, Any]] = field(default_factory=list)


class SupervisedRunner(CellRunner):
    """Runs a cell of classification."""

    progress_type = SupervisedProgress
    progress: SupervisedProgress
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
        scenario = self.learner.scenario
        drawn = {
            "batch_size": self.settings.batch_size,
            "iterations": count,
            "seed": self.settings.seed_of_batches(self.cell.seed),
            "start": self.progress.batch,
        }
        batches: Iterator[tuple[Tensor, ...]]
        if self.learner.joint:
            batches = scenario.joint_batches(seen, **drawn)  # with the task of each sample
        else:
            batches = scenario.batches(seen[-1], **drawn)
        for batch in batches:
            self._learn(batch, count)
            yield

    def _count(self, seen: list[int]) -> int:
        s = self.settings
        joint = self.learner.joint
        steps = s.iterations
        if joint and steps is not None:
            steps *= len(seen)
        return self.tasks.n_batches(seen if joint else seen[-1], s.batch_size, s.epochs, steps)

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

    def _leave(self, command: str) -> CellRecord:
        if self.progress.snapshots:  # before the record: a finished cell has them
            self.store.write_snapshots(self.cell.name, stacked(self.progress.snapshots))
        return super()._leave(command)

    def _record(self, command: str) -> dict[str, Any]:
        names = ("nll", "ece", "predictions")
        found = {name: [getattr(score, name) for score in self.last] for name in names}
        return {**super()._record(command), **found}


@dataclass
class TaskScore:
    """Shares of correct answers by combination; nll, ece and labels of the mixture."""

    correct: dict[str, float]
    nll: float
    ece: float
    predictions: str


def count_correct(
    filter: Predictor, outputs: Tensor, y: Tensor, weights: Tensor
) -> tuple[NDArray[np.float64], Tensor]:
    """Correct predictions of a batch for each of `COMBINES`, and the mixture's probabilities.

    `particles` is the weighted mean of the particles' own counts; `logits` and `probs` are of
    their weighted mean outputs and probabilities.
    """
    own = (outputs.argmax(-1) == y).double().sum(1)
    probabilities = filter.average(outputs.softmax(-1), weights)
    logits = filter.average(outputs.nan_to_num(neginf=-1e30), weights)
    counts = [ParticleFilter.average(own, weights)]
    for mixture in (logits, probabilities):
        counts.append((mixture.argmax(-1) == y).sum())
    return np.array([float(count) for count in counts]), probabilities


@torch.no_grad()
def score_task(learner: ContinualLearner, task: int, test_batch: int) -> TaskScore:
    x, y = learner.scenario.test_set(task)
    weights = learner.weights
    correct = np.zeros(len(COMBINES))
    found = []
    for xs, ys in zip(x.split(test_batch), y.split(test_batch), strict=True):
        outputs = learner.outputs(xs, task)  # [N, B, C]
        more, probabilities = count_correct(learner.filter, outputs, ys, weights)
        correct += more
        found.append(probabilities)
    labels = y.cpu().numpy()
    mixture = torch.cat(found)
    chances = mixture.double().cpu().numpy()
    answers = mixture.argmax(-1).to(torch.uint8)
    with np.errstate(invalid="ignore"):  # a network that diverged may return NaN
        ece = metrics.ece(chances, labels)
    return TaskScore(
        dict(zip(COMBINES, (correct / len(labels)).tolist(), strict=True)),
        metrics.nll(chances, labels),
        ece,
        base64.b64encode(answers.cpu().numpy().tobytes()).decode(),
    )


@torch.no_grad()
def snapshot(filter: Predictor, step: int) -> dict[str, Any]:
    """Randomly projected positions `[N, 64]` of all particles, and weights: the density figure."""
    particles = filter.particles
    total = torch.zeros(particles.n, PROJECTION, device=particles.device)
    generator = torch.Generator().manual_seed(0)
    for parameter in particles.parameters():
        for part in parameter.detach().flatten(1).split(65536, dim=1):
            directions = torch.randn(part.shape[1], PROJECTION, generator=generator)
            total += part.float() @ directions.to(total)
    position = total.cpu() / math.sqrt(PROJECTION)
    return {"position": position, "log_weights": filter.log_weights.cpu(), "step": step}


def stacked(taken: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Snapshots of one run: positions `[S, N, 64]`, log_weights `[S, N]`, step `[S]`."""
    return {
        "positions": torch.stack([s["position"] for s in taken]),
        "log_weights": torch.stack([s["log_weights"] for s in taken]),
        "step": torch.tensor([s["step"] for s in taken]),
    }
