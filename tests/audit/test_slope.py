"""The variance over orders falls with the rate to the power 4, with momentum to the power 2."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.audit.toys import LastTask, toy_tasks

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
        self.lr, self.momentum = lr, momentum
        self.w = self.velocity = torch.zeros((), dtype=torch.float64)

    def learn(self, x, y, task):
        gradient = CURVATURE[task] * (self.w - MINIMUM[task])
        self.velocity = self.momentum * self.velocity + gradient
        self.w = self.w - self.lr * self.velocity

    def predict(self, x):
        return self.w.expand(len(x))


def with_momentum(seed: int, lr: float = 0.1) -> Quadratic:
    return Quadratic(seed, lr, momentum=0.9)


def test_two_steps_of_gradient_descent_have_the_slope_four_exactly() -> None:
    """w_12 - w_21 = h^2 k_1 k_2 (c_1 - c_2), with curvatures k and minima c."""
    rates = (0.5, 0.2)
    found = ol.audit.rate_slope(Quadratic, quadratic_tasks(2), rates, orders=2)
    assert found.slope == pytest.approx(4.0, abs=1e-12)
    apart = [(rate**2 * 1.0 * 2.0 * (1.0 + 1.0)) for rate in rates]
    assert found.variances == pytest.approx([(gap / 2) ** 2 for gap in apart])


def test_small_rates_tend_to_four_and_with_momentum_to_two() -> None:
    rates = (1e-3, 5e-4)
    plain = ol.audit.rate_slope(Quadratic, quadratic_tasks(), rates, orders=6)
    heavy = ol.audit.rate_slope(with_momentum, quadratic_tasks(), rates, orders=6)
    assert plain.slope == pytest.approx(4.0, abs=0.01)
    assert heavy.slope == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize(
    ("optimizer", "slope"),
    [
        (torch.optim.SGD, 4.0),
        (lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9), 2.0),
        (torch.optim.AdamW, 2.0),
    ],
)
def test_networks_follow_the_law(optimizer, slope: float) -> None:
    def make_learner(seed: int, lr: float = 0.1):
        torch.set_default_dtype(torch.float64)
        try:
            network = torch.nn.Sequential(
                torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
            )
        finally:
            torch.set_default_dtype(torch.float32)
        return ol.audit.from_torch(lambda: network, lambda p: optimizer(p, lr=lr))(seed)

    tasks = [ol.Task(t.x.double(), t.y, t.x_test.double(), t.y_test, t.name) for t in toy_tasks(3)]
    found = ol.audit.rate_slope(make_learner, tasks, (2e-4, 1e-4), orders=6)
    assert found.slope == pytest.approx(slope, abs=0.1)


def test_an_audit_with_two_rates_prints_the_slope_and_keeps_its_runs(tmp_path) -> None:
    options = {"orders": 6, "seeds": 2, "rates": (1e-3, 5e-4), "out": tmp_path / "a"}
    told = []
    result = ol.order_sensitivity(
        Quadratic, quadratic_tasks(), progress=lambda *what: told.append(what), **options
    )
    assert result.slope.slope == pytest.approx(4.0, abs=0.01)
    assert "to the power 4.00" in result.text() and told[-1] == (24, 24, "done")
    assert json.loads(result.json())["slope"]["slope"] == result.slope.slope
    again = []
    ol.order_sensitivity(
        Quadratic, quadratic_tasks(), progress=lambda *what: again.append(what), **options
    )
    assert again == [(24, 24, "done")]


def test_no_variance_has_no_slope() -> None:
    class Still(Quadratic):
        def learn(self, x, y, task):
            pass

    found = ol.audit.rate_slope(Still, quadratic_tasks(), (0.1, 0.01))
    assert found.slope is None and found.variances == (0.0, 0.0) and "power" not in str(found)


def test_what_has_no_slope_is_refused() -> None:
    class Labels(LastTask):
        def __init__(self, seed, lr):
            super().__init__(seed)

        def predict(self, x):
            return np.zeros(len(x), dtype=int)

    with pytest.raises(ValueError, match="predicts labels"):
        ol.audit.rate_slope(Labels, toy_tasks(), (0.1, 0.01))
    for rates in ((0.1,), (0.1, 0.1), (0.1, 0.0)):
        with pytest.raises(ValueError, match="two different learning rates"):
            ol.audit.rate_slope(Quadratic, quadratic_tasks(), rates)
