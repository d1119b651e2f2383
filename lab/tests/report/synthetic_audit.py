"""An audit of two learners, one of which depends on the order and one of which does not."""

from __future__ import annotations

import numpy as np

from orderless.audit import LearnerAudit, OrderSensitivity
from orderless_lab.scenarios import orders

TASKS = ("monday", "tuesday", "</script>")


def make_audit(seeds: int = 3, count: int = 5) -> OrderSensitivity:
    generator = np.random.default_rng(0)
    effect = generator.random((1, count, len(TASKS), len(TASKS)))

    def learner(name: str, size: float) -> LearnerAudit:
        noise = generator.random((seeds, count, len(TASKS), len(TASKS)))
        matrices = 0.5 + size * (effect + 0.1 * noise)
        same = size == 0
        return LearnerAudit(name, matrices, np.zeros((count, count)), 0.0, False, same, seconds=2.0)

    sequence = tuple(orders(len(TASKS), count, 0))
    return OrderSensitivity(learner("mine", 0.4), (learner("rb", 0.0),), TASKS, sequence, seeds)
