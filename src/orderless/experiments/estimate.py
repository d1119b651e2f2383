"""What a run would take, found by trying a few steps of each method."""

from __future__ import annotations

import time

import torch

from ..methods import Setup, find_method
from ..scenarios import Scenario
from .benchmarks import find_benchmark
from .cell import Cell
from .evaluation import score_task
from .grid import Grid
from .store import Store


def estimate(grid: Grid, store: Store, root: str | None, device: torch.device) -> str:
    """Cells to compute, memory of the largest, and time, as text."""
    scenario = grid.scenarios(root, device)[0]
    cells = list(grid.cells(len(scenario)))
    missing = [cell for cell in cells if store.finished(cell.name) is None]
    lines = [f"{len(cells)} cells, {len(cells) - len(missing)} finished, {len(missing)} to compute"]
    seconds, memory = 0.0, 0
    for name in grid.methods:
        of_method = [cell for cell in missing if cell.method == name]
        if of_method:
            each, bytes_held = _try(of_method[0], scenario)
            seconds += each * len(of_method)
            memory = max(memory, bytes_held)
            lines.append(f"  {name}: {len(of_method)} cells of about {each:.1f} s")
    lines.append(f"parameters of the largest method: {memory / 2**20:.0f} MiB; a step needs up to")
    lines.append(f"3 times that and activations; estimated time: {_span(seconds)}")
    return "\n".join(lines)


def _try(cell: Cell, scenario: Scenario, steps: int = 3) -> tuple[float, int]:
    """Seconds for one cell and bytes of its parameters, from a few steps and one scoring."""
    network = find_benchmark(cell.benchmark).network(scenario, cell.settings)
    learner = find_method(cell.method).build(Setup(scenario, cell.settings, network, cell.seed))
    s = cell.settings
    learner.begin_task([0])
    batches = scenario.batches(0, batch_size=s.batch_size, seed=0, iterations=2 * steps)
    begun = time.monotonic()
    for number, (x, y) in enumerate(batches):
        if number == steps:  # the first half was warming up
            begun = time.monotonic()
        learner.learn(x, y)
    _wait(scenario)
    per_step = (time.monotonic() - begun) / steps
    begun = time.monotonic()
    score_task(learner, 0, s.test_batch)
    _wait(scenario)
    per_task = time.monotonic() - begun
    tasks = len(scenario)
    counts = [scenario.n_batches(t, s.batch_size, s.epochs, s.iterations) for t in range(tasks)]
    held = sum(p.numel() * p.element_size() for p in learner.filter.particles.parameters())
    return per_step * sum(counts) + per_task * tasks * (tasks + 1), held


def _wait(scenario: Scenario) -> None:
    if scenario.device.type == "cuda":
        torch.cuda.synchronize()


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
