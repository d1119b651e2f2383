"""What a run would take, found by trying a few steps of each method."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import torch

from ..methods import Setup, find_method
from ..methods.learners import ExactLearner
from ..scenarios import Scenario
from .benchmarks import find_benchmark
from .course import Cell
from .grid import Grid, processes, unfinished
from .launch.local import one_thread
from .policy_estimate import try_policy
from .store import Store
from .timing import seconds, settle, span
from .trial import Trial, bytes_of, fisher_growth, long_enough, part, particles_of, smaller

# Of lambda, until the evidence is largest. A few samples, as are tried here, would take far more.
_TRIALS = 8


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
    total, memory, smallest = 0.0, 0, 1.0
    for name in grid.methods:
        of_method = [cell for cell in missing if cell.method == name]
        if of_method:
            with one_thread():
                if supervised:
                    trial = long_enough(partial(_try, of_method[0], scenario))
                else:
                    trial = try_policy(of_method[0], scenario, store)
            total += trial.seconds * len(of_method)
            memory = max(memory, trial.bytes_held)
            smallest = min(smallest, trial.share)
            lines.append(f"  {name}: {len(of_method)} cells of about {trial.seconds:.1f} s")
    lines.append(
        f"memory: {memory / 2**20:.0f} MiB for the parameters of the largest method; learning "
        f"takes about 3 times that and activations, in each of {workers} process(es)"
    )
    roughly = f" (roughly: scaled up from 1/{1 / smallest:.0f} of a step)" if smallest < 1 else ""
    lines.append(f"estimated time: {span(total / workers)}{roughly}")
    return "\n".join(lines)


def _try(cell: Cell, scenario: Scenario, share: float, steps: int = 3) -> Trial:
    """A few steps, a task's end and answers to one batch, by a share of the particles."""
    s, tasks, device = cell.settings, len(scenario), scenario.device
    samples = len(scenario.targets(0))
    tried = part(samples, share, s.batch_size)  # for Fisher information
    limit = min(tried, s.flat()["fisher_samples"] or tried)
    small = smaller(cell, share, fisher_samples=limit, rb_block=steps * s.batch_size)
    network = find_benchmark(cell.benchmark).network(scenario, small.settings)
    learner = find_method(cell.method).build(Setup(scenario, small.settings, network, cell.seed))
    exact = isinstance(learner, ExactLearner)
    if exact:  # one trial, wherever the evidence is
        learner.filter.prior_precision = learner.filter.noise_variance = 1.0
    x = scenario.test_set(0)[0]
    answered = x[: s.test_batch]

    def learn() -> None:
        batches = scenario.batches(0, batch_size=s.batch_size, seed=0, iterations=steps)
        with suppress(FloatingPointError):  # a step that breaks the networks takes its time, too
            for batch in batches:
                learner.learn(*batch)

    @torch.no_grad()
    def answer() -> None:
        learner.outputs(answered, 0)

    learner.begin_task([0])
    learn()  # warms up
    per_end = seconds(learner.end_task, device)
    if not learner.joint:
        learner.begin_task([*range(1, tasks), 0])  # with a penalty for the past, if there is one
    settle(learn, device)
    learning = seconds(learn, device)
    answer()  # what is solved on read, a task's end has paid
    answering = seconds(answer, device)
    more = particles_of(cell) / learner.filter.particles.n
    counts = [scenario.n_batches(t, s.batch_size, s.epochs, s.iterations) for t in range(tasks)]
    scorings = tasks * (2 if learner.joint else tasks + 1) * len(x) / len(answered)
    ends = tasks * fisher_growth(learner, s.flat()["fisher_samples"], samples, tried)
    ends *= _TRIALS if exact else 1
    return Trial(
        (learning / steps * sum(counts) + answering * scorings + per_end * ends) * more,
        round(bytes_of(learner.filter.particles) * more),
        learning + answering,
        1 / more,
    )
