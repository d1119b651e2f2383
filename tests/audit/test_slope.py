"""The variance over orders falls with the rate to the power 4, with momentum to the power 2."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

import orderless as ol

# tasks of one step each: the loss h (w - c)^2 / 2, learned from w = 0
CURVATURE = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
MINIMUM = torch.tensor([1.0, -1.0, 3.0], dtype=torch.float64)


def quadratic_tasks(count: int = 3) -> list[ol.Task]:
    test = torch.zeros(2, 1, dtype=torch.float64)
    answers = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return [ol.Task(test, answers, test, answers, f"{task}") for task in range(count)]


class Quadratic:
    """One step of gradient descent a task, with momentum or without; predicts w itself."""

    def __init__(self, seed: int, lr: float = 0.1, momentum: float = 0.0) -> None:
        self.lr = lr
        self.momentum = momentum
        self.w = torch.zeros((), dtype=torch.float64)
        self.velocity = self.w

    def learn(self, x, y, task):
        gradient = CURVATURE[task] * (self.w - MINIMUM[task])
        self.velocity = self.momentum * self.velocity + gradient
        self.w = self.w - self.lr * self.velocity

    def predict(self, x):
        return self.w.expand(len(x))


def audited(learner, tasks, rates, orders: int = 6) -> ol.audit.OrderSensitivity:
    return ol.order_sensitivity(learner, tasks, orders=orders, seeds=2, rates=rates)


def test_two_steps_of_gradient_descent_have_the_slope_four_exactly() -> None:
    """w_12 - w_21 = h^2 k_1 k_2 (c_1 - c_2), with curvatures k and minima c."""
    found = audited(Quadratic, quadratic_tasks(2), (0.5, 0.2), orders=2)
    assert found.slope == pytest.approx(4.0, abs=1e-12)
    assert json.loads(found.json())["slope"] == found.slope
    assert "4.00" in str(found)


def test_small_rates_tend_to_four_and_with_momentum_to_two() -> None:
    rates = (1e-3, 5e-4)
    assert audited(Quadratic, quadratic_tasks(), rates).slope == pytest.approx(4.0, abs=0.01)
    heavy = partial(Quadratic, momentum=0.9)
    assert audited(heavy, quadratic_tasks(), rates).slope == pytest.approx(2.0, abs=0.01)


def test_no_variance_has_no_slope() -> None:
    class Still(Quadratic):
        def learn(self, x, y, task):
            pass

    found = audited(Still, quadratic_tasks(), (0.1, 0.01))
    assert found.slope is None and "slope" not in str(found)


@pytest.mark.parametrize("rates", [(0.1,), (0.1, 0.1), (0.1, 0.0)])
def test_what_are_no_two_rates_is_refused(rates) -> None:
    with pytest.raises(ValueError, match="two different learning rates"):
        audited(Quadratic, quadratic_tasks(), rates)
