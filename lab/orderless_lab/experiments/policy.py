"""Cells of the ProcGen benchmarks: behaviour cloning of an expert, and lifelong learning by PPO."""

import math
import time
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orderless.ensemble import Ensemble
from orderless.filters import ParticleFilter
from orderless_lab.storage.typed import decode

from ..methods.learners.continual import heaviest_representation
from ..methods.learners.policy import PolicyLearner
from ..methods.policy_settings import PolicySettings
from ..methods.policy_setup import PolicySetup
from ..optim import TRAC
from ..rl import BehaviourCloning, Episode, UpdateInfo
from ..rl.cloning import COMBINES, play_both
from ..rl.procgen import ProcgenLevels
from ..rl.tasks import ClonedTasks, ProcgenTasks
from .evaluation import SAMPLES
from .record import ExpertFacts, Row
from .runner import TRACES, CellRunner


class PolicyRunner(CellRunner):
    """Runs a cell whose tasks are levels of a game and whose scores are returns."""

    score_kind = "return"
    setup_type = PolicySetup
    learner: BehaviourCloning | PolicyLearner
    settings: PolicySettings
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

    def _initial(self) -> Ensemble:
        return self.setup.ensemble(self.filter.particles.n)


class CloningRunner(PolicyRunner):
    """Runs behaviour cloning, level after level; R holds normalised returns on every level."""

    combines = COMBINES
    learner: BehaviourCloning
    tasks: ClonedTasks

    def _count(self, s: PolicySettings, seen: list[int]) -> int:
        return s.iterations or s.epochs * (s.transitions // s.batch_size)

    @cached_property
    def env(self) -> ProcgenLevels:
        """Copies for the particles' episodes, and as many for those of their mixture."""
        env = self.tasks.environment(self.settings.episodes * len(self._played()))
        self.opened.callback(env.close)
        return env

    def _played(self) -> tuple[str, ...]:
        return self.combines if self.filter.particles.n > 1 else self.combines[:1]

    def _stage(self, seen: list[int], count: int) -> Iterator[None]:
        data = self.tasks.transitions(seen[-1])
        batches = data.observations.to(self.tasks.device), data.actions.to(self.tasks.device)
        level, progress = self.tasks.levels[seen[-1]], self.progress
        every = math.ceil(count / TRACES)
        while progress.batch < count:
            # until the next step that is recorded
            stop = min(count, (progress.batch // every + 1) * every)
            some = partial(self.learner.learn, level=level, start=progress.batch, stop=stop)
            losses = self._attempt(partial(some, *batches))
            self.tick(stop - progress.batch)
            progress.batch = stop
            if losses is not None:
                self._trace_now(losses[-1])
            yield
        self._look_at(data.observations)
        progress.shown.append(data.facts["mean_return"])

    def _score(self, seen: list[int]) -> None:
        """The row of R has the particles' own returns, weighted, and the mixture's."""
        begun = time.monotonic()
        found = []
        for level in self.tasks.levels:
            self.env.switch(level)
            found.append(play_both(self.filter, self.env, combines=self._played(), seed=self.seed))
        for name, rows in self.progress.scores.items():  # one particle is its own mixture
            rows.append([each.get(name, each["accuracy"]).mean for each in found])
        self.progress.scoring += time.monotonic() - begun

    def _identity(self) -> dict[str, object]:
        return {**super()._identity(), "expert": self.tasks.expert.digest}

    def _found(self) -> Any:
        expert, by_task = self.tasks.expert, np.argsort(self.cell.order)
        shown = [self.progress.shown[place] for place in by_task]
        facts = {**expert.facts, "digest": expert.digest, "level_returns": shown}
        return {"expert": decode(ExpertFacts, facts), "scoring_duration": self.progress.scoring}


class LifelongRunner(PolicyRunner):
    """Runs PPO, level after level. A level's score is its mean return while it is learned.

    Levels are not played again later, so R has a last row only. The mixture acts.
    """

    combines = ("accuracy",)
    learner: PolicyLearner

    def _count(self, s: PolicySettings, seen: list[int]) -> int:
        return s.steps_per_rollout * math.ceil(s.steps_per_level / s.steps_per_rollout)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.opened.callback(self.learner.close)

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
                figures, optimizer = _figures(info), getattr(self.filter, "optimizer", None)
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
            self.progress.scores["accuracy"] = [*rows, [by_task[task] for task in tasks]]

    def _add_curve(self, episodes: list[Episode]) -> None:
        """Add the mean returns over equal bins of the level's steps, and their mean."""
        length, env = self.progress.batch, self.learner.env
        begin = self._steps() - length
        returns = env.normalize([episode.value for episode in episodes])
        steps = [episode.step - begin for episode in episodes]
        means = binned_returns(steps, returns, length, self.settings.bins)
        last = returns[len(returns) * 4 // 5 :]
        self.progress.final_returns.append(float(last.mean()) if len(last) else None)
        curves, width = self.progress.curves, length / self.settings.bins
        curves["step"] += [begin + (place + 0.5) * width for place in range(len(means))]
        curves["return"] += means
        known = [mean for mean in means if mean is not None]
        # if no episode ended, the returns so far of the running ones
        level = np.mean(known) if known else env.normalize(self.learner.running_returns()).mean()
        self.progress.returns.append(float(level))

    def _found(self) -> Any:
        return {"curves": self.progress.curves, "final_returns": self.progress.final_returns}


def binned_returns(
    steps: list[int], returns: np.ndarray, length: int, bins: int
) -> list[float | None]:
    """Mean returns over `bins` equal parts of (0, length], by the step at which episodes ended."""
    places = np.ceil(np.array(steps, dtype=np.float64) * bins / length).astype(int) - 1
    parts = [returns[places == place] for place in range(bins)]
    return [float(part.mean()) if len(part) else None for part in parts]


def _figures(info: UpdateInfo) -> dict[str, float]:
    """The figures of an update: importance weights, and the spread of each part of the weights."""
    summary, terms = info.summary(), ("policy", "value", "entropy")
    names = ("entropy", "importance", "truncated", "clipped", "divergence")
    spread = info.log_weight_parts[:, info.alive].std(1, correction=0).tolist()
    parts = zip((f"log_weight_{term}" for term in terms), spread, strict=True)
    return {**{name: summary[name] for name in names}, **dict(parts)}
