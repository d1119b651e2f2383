"""Cells of behaviour cloning: an expert is cloned, level after level."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from orderless.io import digest

from ..rl import BehaviourCloning
from ..rl.cloning import COMBINES, play_both
from ..rl.procgen import ProcgenLevels
from ..rl.tasks import ClonedTasks
from .policy import PolicyRunner
from .record import Row
from .runner import TRACES, CellProgress


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
