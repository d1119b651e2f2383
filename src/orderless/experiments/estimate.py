"""What a run would take, found by trying a few steps of each method."""

from __future__ import annotations

from contextlib import suppress

import torch

from ..methods import Setup, find_method
from ..scenarios import Scenario
from .benchmarks import find_benchmark
from .course import Cell
from .evaluation import score_task
from .grid import Grid, processes, unfinished
from .policy_estimate import try_policy
from .store import Store
from .timing import seconds
from .workers import one_thread


def estimate(
    grid: Grid, store: Store, root: str | None, device: torch.device, workers: int | None = 1
) -> str:
    """Cells to compute, memory of the largest, and time, as text. Writes nothing."""
    scenarios = grid.scenarios(root, device)
    scenario = scenarios[0]
    cells = list(grid.cells(len(scenario)))
    missing = unfinished(cells, store)
    workers = min(workers or processes(grid, scenarios, len(missing)), max(1, len(missing)))
    lines = [f"{len(cells)} cells, {len(cells) - len(missing)} finished, {len(missing)} to compute"]
    supervised = find_benchmark(grid.benchmark).kind == "supervised"
    total, memory = 0.0, 0
    for name in grid.methods:
        of_method = [cell for cell in missing if cell.method == name]
        if of_method:
            with one_thread():
                if supervised:
                    each, bytes_held = _try(of_method[0], scenario)
                else:
                    each, bytes_held = try_policy(of_method[0], scenario, store)
            total += each * len(of_method)
            memory = max(memory, bytes_held)
            lines.append(f"  {name}: {len(of_method)} cells of about {each:.1f} s")
    lines.append(
        f"memory: {memory / 2**20:.0f} MiB for the parameters of the largest method; learning "
        f"takes about 3 times that and activations, in each of {workers} process(es)"
    )
    lines.append(f"estimated time: {_span(total / workers)}")
    return "\n".join(lines)


def _try(cell: Cell, scenario: Scenario, steps: int = 3) -> tuple[float, int]:
    """Seconds for one cell and bytes of its parameters: a few steps, a task's end, a scoring."""
    network = find_benchmark(cell.benchmark).network(scenario, cell.settings)
    learner = find_method(cell.method).build(Setup(scenario, cell.settings, network, cell.seed))
    s, tasks = cell.settings, len(scenario)

    def learn() -> None:
        batches = scenario.batches(0, batch_size=s.batch_size, seed=0, iterations=steps)
        with suppress(FloatingPointError):  # a step that breaks the networks takes its time, too
            for x, y in batches:
                learner.learn(x, y)

    learner.begin_task([0])
    learn()  # warms up
    per_end = seconds(learner.end_task, scenario.device)
    if not learner.joint:
        learner.begin_task([*range(1, tasks), 0])  # with a penalty for the past, if there is one
    per_step = seconds(learn, scenario.device) / steps
    learner.outputs(scenario.test_set(0)[0][:1], 0)  # what is solved on read, a task's end has paid
    per_score = seconds(lambda: score_task(learner, 0, s.test_batch), scenario.device)
    counts = [scenario.n_batches(t, s.batch_size, s.epochs, s.iterations) for t in range(tasks)]
    held = sum(p.numel() * p.element_size() for p in learner.filter.particles.parameters())
    scorings = tasks * (2 if learner.joint else tasks + 1)
    return per_step * sum(counts) + per_score * scorings + per_end * tasks, held


def _span(time: float) -> str:
    if time < 90:
        return f"{time:.0f} s"
    return f"{time / 60:.0f} min" if time < 5400 else f"{time / 3600:.1f} h"
