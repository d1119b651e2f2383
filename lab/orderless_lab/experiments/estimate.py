"""Estimate the memory and time of a run by timing the first steps of real cells.

A trial is the cell itself with few steps per stage, stopped after the learning of its second stage:
by then every part has run once, and a consolidation has its penalty. If a step takes long, a trial
has fewer particles, samples or copies of a game, and its times are scaled up.
"""

import copy
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orderless.ensemble.precision import one_thread

from ..methods import find_method
from ..methods.policy_settings import PolicySettings
from ..methods.supervised import ExactSettings
from .benchmarks import Scenarios
from .cell import Cell
from .engine import unfinished
from .grid import GridWork, runner_of
from .launch.local import Processes
from .store import Store

WARM = {"cpu": 1, "cuda": 3}  # untimed steps of a stage; on CUDA they are recorded
TIMED = 3  # steps after them
PATIENCE = 0.6  # seconds that a trial should take; a shorter one measures the overhead of calls
FEW = 4  # smallest size of a trial; one sample takes as long as four


def estimate(
    grid: Any, store: Store, root: str | None, device: torch.device, workers: int | None = 1
) -> Iterator[str]:
    """Yield lines on the missing cells, their time and memory; nothing is written to the store."""
    scenarios = Scenarios(grid.benchmark, grid.scenario, grid.settings, root, str(device))
    work, cells = GridWork(grid, scenarios, scenarios), list(grid.cells(len(scenarios[0])))
    missing = unfinished(cells, work, store)
    workers = min(Processes(workers).count(len(missing), work), max(1, len(missing)))
    finished = len(cells) - len(missing)
    yield f"{len(cells)} {grid.what}, {finished} finished, {len(missing)} to compute"
    total, memory, smallest = 0.0, 0, 1.0
    for name in dict.fromkeys(cell.method for cell in missing):
        of_method = [cell for cell in missing if cell.method == name]
        trial = long_enough(of_method[0], scenarios[0])
        total += trial.seconds * len(of_method)
        memory, smallest = max(memory, trial.bytes_held), min(smallest, trial.share)
        yield f"  {name}: {len(of_method)} {grid.what} of about {trial.seconds:.1f} s"
    yield (
        f"memory: {memory / 2**20:.0f} MiB for the parameters of the largest method; learning "
        f"takes about 3 times that and activations, in each of {workers} processes"
    )
    part = round(1 / smallest)
    roughly = f" (roughly: scaled up from 1/{part} of a step)" if part > 1 else ""
    yield f"estimated time: {span(total / workers)}{roughly}"


def span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Trial:
    """Seconds and bytes of a whole cell; the trial took `took` seconds for `share` of a step."""

    seconds: float
    bytes_held: int
    took: float
    share: float


def long_enough(cell: Cell, tasks: Any) -> Trial:
    """Repeat trials with more of the work until one takes long enough or does all of it."""
    share, trial = 0.0, try_cell(cell, tasks, 0.0)
    while share < 1 and trial.share < 1 and trial.took < PATIENCE / 4:
        share = min(1.0, trial.share * PATIENCE / max(trial.took, 1e-6))
        trial = try_cell(cell, tasks, share)
    return trial


def try_cell(cell: Cell, tasks: Any, share: float) -> Trial:
    """Time the first steps of a cell on a share of the work."""
    watch = _Stopwatch(tasks.device)
    with tempfile.TemporaryDirectory() as folder, one_thread():
        small, fewer, per_step, per_rest = _part_of(cell, tasks, share, Path(folder))
        store = Store(folder)
        store.prepare()
        runner = runner_of(small, fewer, store, tick=watch.tick, ended=watch.ended)
        with suppress(_Enough):
            runner.run()
    stages, s = runner.plan(cell.settings), cell.settings
    # the steps of a lifelong cell are those of the games, and it ticks after each rollout
    ticks = s.steps_per_rollout if isinstance(s, PolicySettings) and cell.kind == "lifelong" else 1
    steps = sum(count for _, count in stages) / ticks
    rest = watch.took["beginning"] + len(stages) * watch.took.get("finish", 0.0)
    particles = runner.learner.filter.particles
    exact = find_method(cell.method).config is ExactSettings
    whole = s.of(ExactSettings).rb_particles if exact else s.particles
    more = whole / particles.n if particles.n > 1 else 1.0
    return Trial(
        (watch.took["step"] * steps * per_step + rest * per_rest) * more,
        round(sum(p.numel() * p.element_size() for p in particles.parameters()) * more),
        watch.took["step"] * TIMED,
        min(1.0, 1 / more / per_step),
    )


def _part_of(cell: Cell, tasks: Any, share: float, folder: Path) -> tuple[Cell, Any, float, float]:
    """A small cell, its tasks, and the factors from its step and its rest to the whole cell's."""

    def part(whole: int, least: int = FEW) -> int:
        return min(whole, max(least, math.ceil(whole * share)))

    values: Any = cell.settings.flat(find_method(cell.method))
    steps = WARM[tasks.device.type] + TIMED
    changes: dict[str, int | None] = {"min_ess": None, "iterations": steps}
    for key in {"particles", "rb_particles"} & set(values):
        changes[key] = part(values[key], 2)  # one particle would run other code
    per_step = per_rest = 1.0
    if cell.kind == "lifelong":
        envs, rollout = part(values["envs"]), part(values["rollout"], 2 * FEW)
        changes |= {"envs": envs, "rollout": rollout, "minibatches": 1}
        changes["steps_per_level"] = steps * envs * rollout
        per_step = values["envs"] * values["rollout"] / (envs * rollout)
    elif cell.kind == "cloning":
        batch, episodes = part(values["batch_size"]), part(values["episodes"])
        changes |= {"batch_size": batch, "transitions": batch, "episodes": episodes}
        per_step, per_rest = values["batch_size"] / batch, values["episodes"] / episodes
        tasks = replace(tasks, folder=folder, count=batch)
    elif find_method(cell.method).config is ExactSettings:  # adds samples in blocks
        block = min(512, *(len(tasks.targets(task)) for task in cell.order))
        changes |= {"batch_size": block, "rb_block": block}
        per_step = values["batch_size"] / block
    else:
        whole = max(len(task.y_test) for task in tasks.tasks)
        few = part(whole, 100)
        per_rest, all_tests, tasks = whole / few, tasks.tasks, copy.copy(tasks)
        tasks.tasks = [replace(t, x_test=t.x_test[:few], y_test=t.y_test[:few]) for t in all_tests]
        if values.get("fisher_samples") is not None:
            changes["fisher_samples"] = math.ceil(values["fisher_samples"] / per_rest)
    small = replace(cell, settings=cell.settings.changed(**changes))
    return small, tasks, per_step, per_rest


class _Enough(Exception):
    """Ends a trial."""


@dataclass
class _Stopwatch:
    """Times a cell's phases and steps; ends the cell after the learning of its second stage."""

    device: torch.device
    took: dict[str, float] = field(default_factory=lambda: {"beginning": 0.0, "step": 0.0})
    ticks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = self.now()

    def now(self) -> float:
        """The time after all work on the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()

    def tick(self, steps: int) -> None:
        self.ticks.append(self.now())

    def ended(self, phase: str) -> None:
        before, self.last = self.last, self.now()
        if phase != "learning":
            self.took[phase] = self.last - before
            return
        self.took["step"] = float(np.mean(np.diff(self.ticks[WARM[self.device.type] :])))
        self.ticks = []
        if "finish" in self.took:  # of the first stage
            raise _Enough
