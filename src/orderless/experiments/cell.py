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

from ..learner import Learner
from ..methods import Setup, find_method
from ..scenarios import Scenario
from ..settings import Settings
from .benchmarks import find_benchmark
from .evaluation import COMBINES, plasticity, score_task
from .store import Store, device_name, versions

TRACES = 40  # points per task at which weights and loss are recorded
PROJECTION = 64  # dimensions kept of a particle's position in a snapshot


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
    plasticity: dict[str, list[float]] = field(default_factory=dict)
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
        setup = Setup(scenario, cell.settings, network, cell.seed)
        self.learner: Learner = find_method(cell.method).build(setup)
        self.progress = Progress()
        self._pending: list[tuple[int, Any]] = []  # step infos not yet fetched from the device

    # ------------------------------------------------------------------ the course of a cell

    def run(self, command: str = "") -> dict[str, Any]:
        """Learn all tasks; the finished record is in the store, and is returned."""
        begun = saved = time.monotonic()
        self._resume()
        before = self.progress.seconds
        if not self.progress.scores[COMBINES[0]]:
            self._score([])
            self._snapshot()
        stages = self._stages()
        while self.progress.position < len(stages):
            seen, count = stages[self.progress.position]
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
            self.store.write_snapshots(self.cell.name, self._snapshot_arrays())
        self.store.write_cell(self.cell.name, record)
        return record

    def _stages(self) -> list[tuple[list[int], int]]:
        """(tasks seen so far, batches to come) for every stage; joint training has one."""
        order = list(self.cell.order)
        seen = [order] if self.learner.joint else [order[: k + 1] for k in range(len(order))]
        return [(tasks, self._count(tasks)) for tasks in seen]

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
            progress.died_at = progress.batch
            return
        every = max(1, count // TRACES)
        if progress.batch % every == 0 or progress.batch == count:
            self._pending.append((progress.position * count + progress.batch, info))

    def _finish_task(self, seen: list[int]) -> None:
        self._fetch()
        if self.progress.died_at is None:
            try:
                self.learner.filter.check(now=True)
            except FloatingPointError:
                self.progress.died_at = self.progress.batch
        self.learner.end_task()
        self._score(seen)
        if self.learner.joint:  # there is no intermediate row to speak of
            for rows in self.progress.scores.values():
                missing = [[None] * len(seen) for _ in range(len(seen) - 1)]
                rows[1:1] = missing  # type: ignore[list-item]
        for name, value in plasticity(self.learner, seen[-1]).items():
            self.progress.plasticity.setdefault(name, []).append(value)
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

    @torch.no_grad()
    def _snapshot(self) -> None:
        """Positions of all particles under a fixed random projection, and their weights."""
        if not self.snapshots:
            return
        particles = self.learner.filter.particles
        total = torch.zeros(particles.n, PROJECTION, device=particles.device)
        generator = torch.Generator().manual_seed(0)
        for parameter in particles.parameters():
            flat = parameter.detach().flatten(1)
            for part in flat.split(65536, dim=1):
                directions = torch.randn(part.shape[1], PROJECTION, generator=generator)
                total += part.float() @ directions.to(total)
        step = self.progress.trace["step"][-1] if self.progress.trace["step"] else 0
        position = total.cpu() / math.sqrt(PROJECTION)
        self.progress.snapshots.append(
            {"position": position, "log_weights": self.learner.filter.log_weights.cpu(), "step": step}
        )

    def _snapshot_arrays(self) -> dict[str, np.ndarray]:
        taken = self.progress.snapshots
        return {
            "positions": np.stack([s["position"].numpy() for s in taken]),
            "log_weights": np.stack([s["log_weights"].numpy() for s in taken]),
            "step": np.array([s["step"] for s in taken]),
        }

    # ------------------------------------------------------------------ checkpoint and record

    def _checkpoint(self) -> None:
        self._fetch()
        progress = {
            f.name: getattr(self.progress, f.name) for f in dataclasses.fields(self.progress)
        }
        state = {"cell": self.cell.describe(), "progress": progress}
        self.store.save_checkpoint(self.cell.name, {**state, "learner": self.learner.state_dict()})

    def _resume(self) -> None:
        state = self.store.load_checkpoint(self.cell.name)
        if state is None or state["cell"] != self.cell.describe():
            return
        self.progress = Progress(**state["progress"])
        stages = self._stages()
        if self.progress.position < len(stages):
            self.learner.begin_task(stages[self.progress.position][0])
        self.learner.load_state_dict(state["learner"])
        done = sum(count for _, count in stages[: self.progress.position])
        self.tick(done + self.progress.batch)

    def _record(self, command: str) -> dict[str, Any]:
        filter, progress = self.learner.filter, self.progress
        curves = _areas(progress.trace["loss"], len(progress.plasticity["dormant"]))
        return {
            "format": 1,
            **self.cell.describe(),
            "particles": filter.particles.n,
            "task_names": self.scenario.task_names,
            "scores": progress.scores,
            "nll": [_finite(score.nll) for score in self.last],
            "ece": [_finite(score.ece) for score in self.last],
            "predictions": [score.predictions for score in self.last],
            "trace": {name: [_finite(v) for v in values] for name, values in progress.trace.items()},
            "log_evidence": _finite(float(filter.log_evidence)),
            "temperature": float(filter.temperature),
            "alive": int(filter.alive.sum()),
            "died_at": progress.died_at,
            "plasticity": {**progress.plasticity, "learning_curve_area": curves},
            "versions": versions(),
            "device": device_name(filter.particles.device),
            "duration": progress.seconds,
            "command": command,
        }


def _areas(losses: list[float], tasks: int) -> list[float | None]:
    """Mean training loss over each task: the area under its learning curve, per step."""
    return [_finite(float(np.mean(part))) if len(part) else None
            for part in np.array_split(np.array(losses), tasks)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
