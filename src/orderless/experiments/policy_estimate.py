"""What a cell of the ProcGen benchmarks would take, found by trying a little of it."""

from __future__ import annotations

from contextlib import suppress

import torch

from ..rl import play
from ..rl.tasks import ProcgenTasks
from .course import Cell
from .policy_cell import CloningRun, LifelongRun
from .runs import course_of
from .store import Store
from .timing import seconds


def try_policy(cell: Cell, tasks: ProcgenTasks, store: Store) -> tuple[float, int]:
    """Seconds for one cell and bytes of its parameters. Writes nothing."""
    run = course_of(cell, tasks, store)
    assert isinstance(run, LifelongRun | CloningRun)
    held = sum(p.numel() * p.element_size() for p in run.filter.particles.parameters())
    return _try_playing(run) if isinstance(run, LifelongRun) else _try_cloning(run), held


def _try_playing(run: LifelongRun) -> float:
    """A round to warm up, a level's end, and a round under whatever the past asks for."""
    learner, levels, device = run.learner, run.tasks.levels, run.tasks.device

    def one_round() -> None:
        learner.collect()
        with suppress(FloatingPointError):  # breaking down takes its time, too
            learner.update()

    try:
        learner.begin_level(levels[0])
        one_round()
        per_end = seconds(learner.end_level, device)
        learner.begin_level(levels[-1])
        one_round()
        per_round = seconds(one_round, device)
    finally:
        learner.env.close()
    rounds = sum(count for _, count in run.stages) // run.round_steps
    return per_round * rounds + per_end * len(levels)


def _try_cloning(run: CloningRun, steps: int = 3) -> float:
    """Steps on noise, and one scoring, of policies that may not last as long as trained ones."""
    s, device = run.settings, run.tasks.device
    frames = torch.randint(0, 256, (s.batch_size * steps, 3, 64, 64), dtype=torch.uint8)
    batches = frames.to(device), torch.zeros(len(frames), dtype=torch.int64, device=device)

    def learn() -> None:
        with suppress(FloatingPointError):
            run.learner.learn(*batches, level=0)

    learn()
    per_step = seconds(learn, device) / steps
    env = run.environment()
    try:
        per_play = seconds(lambda: play(run.filter, env, combine="accuracy"), device)
    finally:
        env.close()
    levels, ways = len(run.tasks), 1 if run.filter.particles.n == 1 else 2
    return (
        per_step * sum(count for _, count in run.stages) + per_play * (levels + 1) * levels * ways
    )
