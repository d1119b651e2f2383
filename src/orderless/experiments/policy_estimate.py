"""What a cell of the ProcGen benchmarks would take, found by trying a little of it."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache, partial

import numpy as np
import torch

from ..methods.policy_settings import PolicySettings
from ..rl.procgen import ProcgenLevels
from ..rl.tasks import ProcgenTasks
from .benchmarks import find_benchmark
from .course import Cell
from .policy_cell import CloningRun, LifelongRun
from .runs import course_of
from .store import Store
from .timing import seconds, settle
from .trial import Trial, bytes_of, fisher_growth, long_enough, part, particles_of, side, smaller

FEW = 4  # frames at a time; a network takes as long for one of them


def try_policy(cell: Cell, tasks: ProcgenTasks, store: Store) -> Trial:
    """Time and memory of one cell. Writes nothing."""
    lifelong = find_benchmark(cell.benchmark).kind == "lifelong"
    attempt = _try_playing if lifelong else _try_cloning
    return long_enough(partial(attempt, cell, tasks, store))


def _try_playing(cell: Cell, tasks: ProcgenTasks, store: Store, share: float) -> Trial:
    """One minibatch: played and learned to warm up, a level's end, and the same under whatever the
    past asks for."""
    s, device, levels = cell.settings, tasks.device, tasks.levels
    assert isinstance(s, PolicySettings)
    share = side(cell, share)
    copies, length = part(s.envs, share, FEW), max(1, s.rollout // s.minibatches)
    small = smaller(cell, share, envs=copies, rollout=length, minibatches=1, ppo_epochs=1)
    run = course_of(small, tasks, store)
    assert isinstance(run, LifelongRun)
    learner = run.learner

    def update() -> None:
        with suppress(FloatingPointError):  # breaking down takes its time, too
            learner.update()

    try:
        learner.begin_level(levels[0])
        learner.collect()
        update()
        per_end = seconds(learner.end_level, device)
        learner.begin_level(levels[-1])
        settle(update, device)
        collecting, updating = seconds(learner.collect, device), seconds(update, device)
    finally:
        learner.env.close()
    whole, tried = s.envs * s.rollout, copies * length
    more = particles_of(cell) / run.filter.particles.n
    per_round = (collecting + s.ppo_epochs * updating) * more * whole / tried
    rounds = len(levels) * math.ceil(s.steps_per_level / whole)
    ends = len(levels) * fisher_growth(learner, s.flat().get("fisher_samples"), whole, tried) * more
    return Trial(
        per_round * rounds + per_end * ends,
        round(bytes_of(run.filter.particles) * more),
        collecting + updating,
        min(1.0, tried * s.minibatches / whole) / more,
    )


def _try_cloning(cell: Cell, tasks: ProcgenTasks, store: Store, share: float) -> Trial:
    """A step on noise, a look at it, and episodes of random actions, which may be shorter than
    those of trained policies."""
    s, device, n = cell.settings, tasks.device, particles_of(cell)
    assert isinstance(s, PolicySettings)
    share = side(cell, share)
    batch = part(s.batch_size, share, FEW)
    run = course_of(smaller(cell, share, batch_size=batch), tasks, store)
    assert isinstance(run, CloningRun)
    particles = run.filter.particles
    frames = torch.randint(0, 256, (batch, 3, 64, 64), dtype=torch.uint8, device=device)
    actions = torch.zeros(batch, dtype=torch.int64, device=device)

    def learn() -> None:
        with suppress(FloatingPointError):
            run.learner.learn(frames, actions, level=0)

    def look() -> None:
        with torch.no_grad(), particles.evaluating():
            particles(frames)

    learn()
    look()
    settle(learn, device)
    learning, looking = seconds(learn, device), seconds(look, device)
    more = n / particles.n
    per_step, per_look = learning * more * s.batch_size / batch, looking / batch / particles.n
    copies = s.episodes if n == 1 else 2 * s.episodes  # for the particles and for their mixture
    steps, playing = _random_play(tasks.game, tasks.levels[0], copies)
    per_level = playing + steps * copies * n * per_look
    stages = len(tasks) * (s.iterations or s.epochs * (s.transitions // s.batch_size))
    return Trial(
        per_step * stages + per_level * (len(tasks) + 1) * len(tasks),
        round(bytes_of(particles) * more),
        learning + looking,
        batch / s.batch_size / more,
    )


@lru_cache
def _random_play(game: str, level: int, copies: int) -> tuple[int, float]:
    """Steps until every copy has ended an episode under random actions, and their seconds."""
    env, draw = ProcgenLevels(game, copies, level), np.random.default_rng(0)
    ended, steps = np.zeros(copies, dtype=bool), 0

    def play() -> None:
        nonlocal ended, steps
        while not ended.all():
            env.step(draw.integers(env.actions, size=copies))
            ended, steps = ended | env.ended, steps + 1

    try:
        env.reset()
        took = seconds(play, torch.device("cpu"))
        return steps, took
    finally:
        env.close()
