"""One cell of the grid: one method learns the tasks in one order from one seed."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..learners import ContinualLearner
from ..methods import Setup, find_method
from ..scenarios import Scenario
from ..settings import Settings
from .benchmarks import find_benchmark
from .evaluation import COMBINES, displacement, plasticity, score_task
from .snapshots import as_arrays, snapshot
from .store import Store, device_name, versions

TRACES = 40  # at most so many points per task at which weights and loss are recorded


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
    settings: Settings

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
            "settings": dataclasses.asdict(self.settings),
        }


@dataclass
class Progress:
    """How far a cell has come; with the learner's state, all that a checkpoint holds."""

    position: int = 0
    batch: int = 0
    seconds: float = 0.0
    died_at: int | None = None
    scores: dict[str, list[list[float | None]]] = field(
        default_factory=lambda: {name: [] for name in COMBINES}
    )
    trace: dict[str, list[float]] = field(
        default_factory=lambda: {"step": [], "ess": [], "largest_weight": [], "loss": []}
    )
    plasticity: dict[str, list[float | None]] = field(default_factory=dict)
    snapshots: list[Any] = field(default_factory=list)


class CellRun:
    """Runs one cell from the start, or from its checkpoint."""

    def __init__(
        self,
        cell: Cell,
        scenario: Scenario,
        store: Store,
        *,
        checkpoint_every: float = 60.0,
        tick: Callable[[int], None] = lambda steps: None,
    ) -> None:
        self.cell, self.scenario, self.store = cell, scenario, store
        self.checkpoint_every, self.tick = checkpoint_every, tick
        # one cell's worth of pictures is enough
        self.snapshots = cell.method == "wpf" and cell.order_index == cell.seed == 0
        network = find_benchmark(cell.benchmark).network(scenario, cell.settings)
        self.setup = Setup(scenario, cell.settings, network, cell.seed)
        self.learner = self._build()
        self.stages = self._stages()
        self.progress = Progress()
        self._pending: list[tuple[int, Any]] = []  # step infos not yet fetched from the device

    def _build(self) -> ContinualLearner:
        return find_method(self.cell.method).build(self.setup)

    # ------------------------------------------------------------------ the course of a cell

    def run(self, command: str = "") -> dict[str, Any]:
        """Learn all tasks; the finished record is in the store, and is returned."""
        begun = saved = time.monotonic()
        self._resume()
        before = self.progress.seconds
        if not self.progress.scores[COMBINES[0]]:
            self._score([])
            self._snapshot()
        while self.progress.position < len(self.stages):
            seen, count = self.stages[self.progress.position]
            self.learner.begin_task(seen)
            for x, y, task in self._batches(seen):
                self._learn(x, y, task, count)
                if time.monotonic() - saved > self.checkpoint_every:
                    self.progress.seconds = before + time.monotonic() - begun
                    self._checkpoint()
                    saved = time.monotonic()
            self._finish_task(seen)
        self.progress.seconds = before + time.monotonic() - begun
        record = self._record(command)
        if self.snapshots:
            self.store.write_snapshots(self.cell.name, as_arrays(self.progress.snapshots))
        self.store.write_cell(self.cell.name, record)
        return record

    def _stages(self) -> list[tuple[list[int], int]]:
        """(tasks seen so far, batches to come) for every stage; joint training has one."""
        order = list(self.cell.order)
        seen = [order] if self.learner.joint else [order[: k + 1] for k in range(len(order))]
        return [(tasks, self._count(tasks)) for tasks in seen]

    def _steps(self) -> int:
        """Steps since the first task began; tasks may differ in length."""
        before = self.stages[: self.progress.position]
        return sum(count for _, count in before) + self.progress.batch

    def _stream(self, seen: list[int]) -> dict[str, Any]:
        s = self.cell.settings
        seed = self.cell.seed if s.batch_seed is None else s.batch_seed
        iterations = s.iterations
        if iterations is not None and self.learner.joint:
            iterations *= len(seen)
        options = {"batch_size": s.batch_size, "epochs": s.epochs, "iterations": iterations}
        return {**options, "seed": seed}

    def _count(self, seen: list[int]) -> int:
        options = self._stream(seen)
        del options["seed"]
        return self.scenario.n_batches(seen if self.learner.joint else seen[-1], **options)

    def _batches(self, seen: list[int]) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        start, options = self.progress.batch, self._stream(seen)
        if self.learner.joint:
            yield from self.scenario.joint_batches(seen, start=start, **options)
        else:
            for x, y in self.scenario.batches(seen[-1], start=start, **options):
                yield x, y, None

    def _learn(self, x: Tensor, y: Tensor, task: Tensor | None, count: int) -> None:
        progress = self.progress
        progress.batch += 1
        self.tick(1)
        if progress.died_at is not None:
            return
        try:
            info = self.learner.learn(x, y, task)
        except FloatingPointError:
            # A result like any other (a penalty too strong for its learning rate, say): the
            # networks stay as they were, and the record says so.
            progress.died_at = self._steps()
            return
        every = math.ceil(count / TRACES)
        if info is not None and (progress.batch % every == 0 or progress.batch == count):
            self._pending.append((self._steps(), info))

    def _check(self) -> None:
        """Ask now whether anything is left; on CUDA the answer may still be on the device."""
        if self.progress.died_at is None:
            try:
                self.learner.check()
            except FloatingPointError:
                self.progress.died_at = self._steps()

    def _finish_task(self, seen: list[int]) -> None:
        self._check()
        info = self.learner.end_task()
        if info is not None:
            self._pending.append((self._steps(), info))
        self._fetch()
        self._score(seen)
        if self.learner.joint:  # there is no intermediate row to speak of
            for rows in self.progress.scores.values():
                rows[1:1] = [[None for _ in seen] for _ in seen[1:]]
        for name, value in plasticity(self.learner, seen[-1]).items():
            self.progress.plasticity.setdefault(name, []).append(_finite(value))
        self._snapshot()
        self.progress.position += 1
        self.progress.batch = 0

    def _score(self, seen: list[int]) -> None:
        """One more row of R, in the columns of task identities."""
        self.learner.seen = list(seen)
        size = self.cell.settings.test_batch
        self.last = [score_task(self.learner, t, size) for t in range(len(self.scenario))]
        for name in COMBINES:
            self.progress.scores[name].append([score.accuracy[name] for score in self.last])

    # ------------------------------------------------------------------ traces and snapshots

    def _fetch(self) -> None:
        """Bring the pending step infos to the host, all at once."""
        trace = self.progress.trace
        for step, info in self._pending:
            weights = info.log_weights.exp()
            trace["step"].append(step)
            trace["ess"].append(float(info.ess))
            trace["largest_weight"].append(float(weights.max()))
            losses = torch.where(weights > 0, weights * info.loss_before.double(), 0.0)
            trace["loss"].append(float(losses.sum()))
        self._pending = []

    def _snapshot(self) -> None:
        if self.snapshots:
            self.progress.snapshots.append(snapshot(self.learner.filter, self._steps()))

    # ------------------------------------------------------------------ checkpoint and record

    def _checkpoint(self) -> None:
        self._check()
        self._fetch()
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
        if state is None or any(state.get(key) != value for key, value in ours.items()):
            return
        self.progress = Progress(**state["progress"])
        self.learner.begin_task(self.stages[self.progress.position][0])
        self.learner.load_state_dict(state["learner"])
        self.tick(self._steps())

    def _record(self, command: str) -> dict[str, Any]:
        filter, progress = self.learner.filter, self.progress
        moved = np.mean(displacement(filter.particles, self._build().filter.particles))
        curves = _areas(progress.trace, [count for _, count in self.stages])
        return {
            "format": 1,
            **self.cell.describe(),
            "particles": filter.particles.n,
            "task_names": self.scenario.task_names,
            "scores": progress.scores,
            "nll": [_finite(score.nll) for score in self.last],
            "ece": [_finite(score.ece) for score in self.last],
            "predictions": [score.predictions for score in self.last],
            "trace": {k: [_finite(v) for v in values] for k, values in progress.trace.items()},
            "log_evidence": _finite(float(filter.log_evidence)),
            "temperature": float(filter.temperature),
            "ess": float(filter.ess),
            "moved": _finite(float(moved)),
            "alive": int(filter.alive.sum()),
            "died_at": progress.died_at,
            "plasticity": {**progress.plasticity, "learning_curve_area": curves},
            "versions": versions(),
            "device": device_name(filter.particles.device),
            "duration": progress.seconds,
            "command": command,
        }


def _areas(trace: dict[str, list[float]], counts: list[int]) -> list[float | None]:
    """Mean training loss over each task: the area under its learning curve, per step."""
    steps, losses = np.array(trace["step"]), np.array(trace["loss"])
    ends = np.cumsum(counts)
    parts = [
        losses[(steps > end - count) & (steps <= end)]
        for end, count in zip(ends, counts, strict=True)
    ]
    return [_finite(float(part.mean())) if len(part) else None for part in parts]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
