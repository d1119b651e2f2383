"""The filter whose weights see what the closure reports."""

from __future__ import annotations

import pytest
import torch

import orderless as ol
from orderless_lab.rl import PolicyWeightedFilter


def filter_of(n: int) -> PolicyWeightedFilter:
    particles = ol.Ensemble(lambda: torch.nn.Linear(2, 1), n, seed=0)
    return PolicyWeightedFilter(particles, torch.optim.SGD(particles.parameters(), 0.1))


def test_weights_follow_the_reports_and_positions_follow_the_losses() -> None:
    x, filter, plain = torch.randn(5, 2), filter_of(3), filter_of(3)
    reports = iter([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, -1.0])])

    def loss() -> torch.Tensor:
        return filter.particles(x).square().mean((1, 2))

    def reported() -> torch.Tensor:
        filter.report(next(reports))
        return loss()

    filter.step(reported)
    energy = torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(filter.log_weights, (-energy).log_softmax(0))
    weighted = ol.WeightedParticleFilter(
        plain.particles, torch.optim.SGD(plain.particles.parameters(), 0.1)
    )
    weighted.step(lambda: plain.particles(x).square().mean((1, 2)))
    assert torch.equal(filter.particles.weight, plain.particles.weight)


def test_a_closure_that_does_not_report_is_refused_and_nothing_has_moved() -> None:
    filter = filter_of(2)
    before = filter.particles.weight.detach().clone()
    with pytest.raises(ValueError, match="report its energies once in every evaluation"):
        filter.step(lambda: filter.particles(torch.ones(1, 2)).sum((1, 2)))
    assert torch.equal(filter.particles.weight.detach(), before)


def test_linearized_weights_are_refused() -> None:
    particles = ol.Ensemble(lambda: torch.nn.Linear(2, 1), 2)
    optimizer = torch.optim.SGD(particles.parameters(), 0.1)
    with pytest.raises(ValueError, match="weighting must be 'trapezoid', got 'linearized'"):
        PolicyWeightedFilter(particles, optimizer, weighting="linearized")
