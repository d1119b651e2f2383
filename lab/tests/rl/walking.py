"""A learner that walks corridors one after another, with EWC or without."""

from __future__ import annotations

from typing import Any

import torch
from lab.tests.rl.corridor import Corridor, Walker

import orderless as ol
from orderless_lab.methods.learners.policy import PolicyLearner
from orderless_lab.rl import PPOSettings, policy_logits


class Corridors(Corridor):
    """All levels are the same corridor."""

    def switch(self, level: int) -> Any:
        self.level = level
        return self.reset()


def make_walker(strength: float | None, device: str = "cpu") -> PolicyLearner:
    particles = ol.Ensemble(Walker, 2, seed=0, device=device)
    optimizer = torch.optim.SGD(particles.parameters(), lr=1e-2)
    filter = ol.AveragingParticles(particles, optimizer)
    ewc = None
    if strength is not None:
        ewc = ol.EWC(particles, strength, fisher="exact", logits=policy_logits)
    settings = PPOSettings(steps=16, minibatches=4)
    return PolicyLearner(Corridors(8), filter, settings, consolidation=ewc)


def walk(learner: PolicyLearner, level: int, rounds: int = 5) -> None:
    """One level from its beginning to its end."""
    learner.begin_level(level)
    for _ in range(rounds):
        learner.collect()
        learner.update()
    learner.end_level()
