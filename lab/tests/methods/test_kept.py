"""Training on kept samples: no order of the tasks and no batching changes a bit."""

import pytest
import torch
from lab.tests.toys import assert_same_networks
from lab.tests.toys import network as model
from lab.tests.toys import points as scenario

from orderless_lab.methods import METHODS, Setup
from orderless_lab.suites import SupervisedSettings as Settings


def learned(kind, order, batch=12):
    settings = Settings(kept_share=0.5, kept_epochs=3, batch_size=8)
    tasks = scenario(kind)
    learner = METHODS["kept"].build(Setup(tasks, settings, lambda: model(tasks.outputs), 0))
    for position, task in enumerate(order):
        learner.begin_task(order[: position + 1])
        x, y = tasks.train_set(task)
        for rows in torch.arange(12).split(batch):
            learner.learn(x[rows], y[rows])
        learner.end_task()
    return learner.filter.particles


@pytest.mark.parametrize("kind", ["domain", "task", "class"])
def test_no_order_and_no_batching_changes_a_bit(kind):
    first = learned(kind, [0, 1, 2])
    assert_same_networks(learned(kind, [2, 0, 1]), first)
    assert_same_networks(learned(kind, [1, 2, 0], batch=1), first)
    with pytest.raises(AssertionError):
        assert_same_networks(learned(kind, [0, 1]), first)
