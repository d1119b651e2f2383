"""Cells of ProcGen, whose tasks are levels of a game: behaviour cloning, and lifelong PPO."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orderless.filters import ParticleFilter
from orderless.io import digest

from ..methods.learners.learner import heaviest_representation
from ..methods.learners.policy import PolicyLearner
from ..methods.setup import PolicySetup
from ..optim import TRAC
from ..rl import BehaviourCloning, Episode, UpdateInfo
from ..rl.cloning import COMBINES, play_both
from ..rl.procgen import ProcgenLevels
from ..rl.tasks import ClonedTasks, ProcgenTasks
from .cell import Row
from .runner import SAMPLES, TRACES, CellProgress, CellRunner


class PolicyRunner(CellRunner):
    """Runs a cell whose tasks are levels of a game and whose scores are returns."""

    setup_type = PolicySetup
    tasks: ProcgenTasks

    @property
    def filter(self) -> ParticleFilter:
        return self.learner.filter

    def _trace_now(self, losses: Tensor, **more: float) -> None:
        self._trace(self._steps(), self.filter.weights, losses, self.filter.ess, **more)

    def _look_at(self, frames: Tensor) -> None:
        """Measure plasticity on some of these frames, evenly spaced."""
        chosen = torch.linspace(0, len(frames) - 1, min(len(frames), SAMPLES)).long()
        some = frames[chosen.to(frames.device)].to(self.tasks.device)
        self._add_plasticity(*heaviest_representation(self.filter, some))


@dataclass
class CloningProgress(CellProgress):
    scoring: float = 0.0  # seconds
    # on each level so far: the expert's mean return, and the checksum of what it played
    shown: Row = field(default_factory=list)
    checksums: list[str] = field(default_factory=list)


class CloningRunner(PolicyRunner):
    """Runs behaviour cloning, level after level; R holds normalised returns on every level.

    A row of R has the particles' own returns, weighted, and those of their mixture.
    """

    progress_type = CloningProgress
    progress: CloningProgress
    learner: BehaviourCloning
    tasks: ClonedTasks

    def _count(self, seen: list[int]) -> int:
        s = self.settings
        return s.iterations or s.epochs * (s.transitions // s.batch_size)

    @cached_property
    def env(self) -> ProcgenLevels:
        """Copies for the particles' episodes, and as many for those of their mixture."""
        env = self.tasks.environment(self.settings.episodes * len(self._played()))
        self.opened.callback(env.close)
        return env

    def _played(self) -> tuple[str, ...]:
        """One particle is its own mixture."""
        return COMBINES if self.filter.particles.n > 1 else COMBINES[:1]

    def _stage(self, seen: list[int], count: int) -> Iterator[None]:
        data = self.tasks.transitions(seen[-1])
        observations = data.observations.to(self.tasks.device)
        actions = data.actions.to(self.tasks.device)
        level = self.tasks.levels[seen[-1]]
        progress = self.progress
        every = math.ceil(count / TRACES)
        while progress.batch < count:
            # until the next step that is recorded
            stop = min(count, (progress.batch // every + 1) * every)
            learn = partial(self.learner.learn, level=level, start=progress.batch, stop=stop)
            losses = self._attempt(partial(learn, observations, actions))
            self.tick(stop - progress.batch)
            progress.batch = stop
            if losses is not None:
                self._trace_now(losses[-1])
            yield
        self._look_at(data.observations)
        progress.shown.append(data.facts["mean_return"])
        progress.checksums.append(digest(data.facts["sha256"]))  # kinds of devices play otherwise

    def _score(self, seen: list[int]) -> None:
        begun = time.monotonic()
        found = []
        for level in self.tasks.levels:
            self.env.switch(level)
            found.append(play_both(self.filter, self.env, combines=self._played(), seed=self.seed))
        for name, combine in zip(self.suite.scores, COMBINES, strict=True):
            row: Row = [played.get(combine, played[COMBINES[0]]).mean for played in found]
            self.progress.scores[name].append(row)
        self.progress.scoring += time.monotonic() - begun

    def _identity(self) -> dict[str, object]:
        return {**super()._identity(), "expert": self.tasks.expert.digest}

    def _record(self, command: str) -> dict[str, Any]:
        expert = self.tasks.expert
        places = np.argsort(self.cell.order)
        shown = [self.progress.shown[place] for place in places]
        facts = {**expert.facts, "digest": expert.digest, "level_returns": shown}
        return {
            **super()._record(command),
            "data": digest([self.progress.checksums[place] for place in places]),
            "expert": facts,
            "scoring_duration": self.progress.scoring,
        }


@dataclass
class LifelongProgress(CellProgress):
    # returns over environment steps, the means of each level's bins, and of its last fifth
    curves: dict[str, Row] = field(default_factory=lambda: {"step": [], "return": []})
    returns: list[float] = field(default_factory=list)
    final_returns: Row = field(default_factory=list)


class LifelongRunner(PolicyRunner):
    """Runs PPO, level after level. A level's score is its mean return while it is learned.

    Levels are not played again later, so R has a last row only. The mixture acts.
    """

    progress_type = LifelongProgress
    progress: LifelongProgress
    learner: PolicyLearner

    def _count(self, seen: list[int]) -> int:
        s = self.settings
        return s.steps_per_rollout * math.ceil(s.steps_per_level / s.steps_per_rollout)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.opened.callback(self.learner.ppo.env.close)

    def _stage(self, seen: list[int], count: int) -> Iterator[None]:
        if self.progress.batch == 0:
            self.learner.begin_level(self.tasks.levels[seen[-1]])
        steps = self.settings.steps_per_rollout
        every = math.ceil(count / steps / TRACES) * steps
        for batch in range(self.progress.batch + steps, count + 1, steps):
            self.learner.collect()
            info = self._attempt(self.learner.update)  # once dead, the policy acts unchanged
            self.progress.batch = batch
            self.tick(steps)
            if info is not None and (batch % every == 0 or batch == count):
                figures = figures_of(info)
                optimizer = getattr(self.filter, "optimizer", None)
                if isinstance(optimizer, TRAC):
                    scale = self.filter.average(optimizer.scale.double(), self.filter.weights)
                    figures["scale"] = float(scale)
                self._trace_now(info.policy + info.value + info.entropy, **figures)
            # the end of a level needs its last rollout, which is not in a checkpoint
            if batch < count:
                yield

    def _finish_stage(self, seen: list[int]) -> None:
        self.learner.end_level()
        self._look_at(self.learner.experience()[0])
        self._add_curve(self.learner.ppo.take_episodes())
        if len(self.progress.returns) == len(self.stages):
            by_task = dict(zip(self.cell.order, self.progress.returns, strict=True))
            tasks = range(len(self.tasks))
            rows: list[Row] = [[None for _ in tasks] for _ in tasks]
            self.progress.scores["particles"] = [*rows, [by_task[task] for task in tasks]]

    def _add_curve(self, episodes: list[Episode]) -> None:
        """Add the mean returns over equal bins of the level's steps, and their mean."""
        progress = self.progress
        length = progress.batch
        env = self.learner.ppo.env
        begin = self._steps() - length
        returns = env.normalize([episode.value for episode in episodes])
        steps = [episode.step - begin for episode in episodes]
        means = binned_returns(steps, returns, length, self.settings.bins)
        last = returns[len(returns) * 4 // 5 :]
        progress.final_returns.append(float(last.mean()) if len(last) else None)
        width = length / self.settings.bins
        progress.curves["step"] += [begin + (place + 0.5) * width for place in range(len(means))]
        progress.curves["return"] += means
        known = [mean for mean in means if mean is not None]
        # if no episode ended, the returns so far of the running ones
        level = np.mean(known) if known else env.normalize(env.returns.tolist()).mean()
        progress.returns.append(float(level))

    def _record(self, command: str) -> dict[str, Any]:
        progress = self.progress
        found = {"curves": progress.curves, "final_returns": progress.final_returns}
        return {**super()._record(command), **found}


def binned_returns(
    steps: list[int], returns: np.ndarray, length: int, bins: int
) -> list[float | None]:
    """Mean returns over `bins` equal parts of (0, length], by the step at which episodes ended."""
    places = np.ceil(np.array(steps, dtype=np.float64) * bins / length).astype(int) - 1
    parts = [returns[places == place] for place in range(bins)]
    return [float(part.mean()) if len(part) else None for part in parts]


def figures_of(info: UpdateInfo) -> dict[str, float]:
    """The figures of an update: importance weights, and the spread of each part of the weights."""
    summary = info.summary()
    names = ("entropy", "importance", "truncated", "clipped", "divergence")
    found = {name: summary[name] for name in names}
    spread = info.log_weight_parts[:, info.alive].std(1, correction=0).tolist()
    for term, value in zip(("policy", "value", "entropy"), spread, strict=True):
        found[f"log_weight_{term}"] = value
    return found
