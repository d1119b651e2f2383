"""What the cells of both suites of ProcGen have in common: their tasks are levels of a game."""

from __future__ import annotations

import torch
from torch import Tensor

from orderless.ensemble import Ensemble
from orderless.filters import ParticleFilter

from ..methods.learners.continual import heaviest_representation
from ..methods.setup import PolicySetup
from ..rl.tasks import ProcgenTasks
from .runner import CellRunner
from .scoring import SAMPLES


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

    def _initial(self) -> Ensemble:
        return self.setup.ensemble(self.filter.particles.n)
