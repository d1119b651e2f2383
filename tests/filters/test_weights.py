"""Log-weights: huge losses, effective sample size, tempering on read, predictions."""

import math
from functools import partial

import pytest
import torch
from tests.common import Point, gradient_filter, normal
from torch.optim import SGD
from torch.testing import assert_close

import orderless as ol
from orderless.filters.weights import effective_sample_size, temper, temperature_for


def weighted(n: int = 4, **options) -> ol.WeightedParticleFilter:
    return gradient_filter(Point, n, partial(SGD, lr=1e-300), dtype=torch.float64, **options)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.sweep)])
def test_log_weights_survive_many_losses_of_ten_thousand(count: int) -> None:
    """The update itself: differences of 1e-3 per step among losses of 1e4."""
    pf = weighted(3)
    losses = torch.tensor([1e4, 1e4 + 1e-3, 1e4 + 1.0], dtype=torch.float64)
    alive = torch.ones(3, dtype=torch.bool)
    for _ in range(count):
        pf.reweigh(-losses, alive)
    expected = (-count * (losses - 1e4)).log_softmax(0)
    # 1e4 in float64 is exact to 2e-12, so 1e5 steps are to 2e-7
    assert_close(pf.log_weights, expected, rtol=1e-9, atol=1e-11 * count)
    assert pf.log_evidence.item() == pytest.approx(-1e4 * count - math.log(3), rel=1e-9)
    assert pf.steps.item() == count


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100])
def test_ess_is_n_when_all_share_and_1_when_one_has_it_all(n: int) -> None:
    pf = weighted(n)
    assert pf.ess.item() == pytest.approx(n, rel=1e-12)
    pf.reweigh(torch.tensor([0.0] + [-1e5] * (n - 1), dtype=torch.float64), pf.alive.clone())
    assert pf.ess.item() == 1.0


def test_ess_is_one_over_the_sum_of_squares() -> None:
    weights = torch.tensor([0.5, 0.2, 0.2, 0.1, 0.0], dtype=torch.float64)
    assert effective_sample_size(weights.log()).item() == pytest.approx(1 / 0.34)


@pytest.mark.parametrize("spread", [0.1, 3.0, 100.0, 1e6])
@pytest.mark.parametrize("min_ess", [1.0, 2.5, 5.0, 7.9])
def test_the_temperature_is_the_largest_that_keeps_min_ess(spread: float, min_ess: float) -> None:
    log_weights = (spread * normal(8, seed=1).double()).log_softmax(0)
    tau = temperature_for(log_weights, min_ess).item()
    grid = torch.cat([torch.linspace(0, 1, 2001), torch.logspace(-9, 0, 2001)]).double()
    weights = (grid[:, None] * log_weights).softmax(1)
    holds = 1 / weights.square().sum(1) >= min_ess - 1e-9
    assert effective_sample_size(temper(log_weights, tau)).item() >= min_ess - 1e-9
    assert tau >= grid[holds].max() - 1e-12
    assert (tau <= grid[~holds]).all()


def test_weights_that_suffice_are_not_tempered() -> None:
    """Uniform weights have ESS n, whatever the last bit of their logarithms says."""
    for n in range(1, 100):
        uniform = torch.full((n,), 1 / n, dtype=torch.float64).log()
        assert temperature_for(uniform, n).item() == 1.0, n
    assert weighted(7, min_ess=7).temperature.item() == 1.0


def test_tempering_happens_on_read_only() -> None:
    plain, tempered = weighted(6), weighted(6, min_ess=4)
    for g in torch.randn(10, 3, dtype=torch.float64):
        for pf in (plain, tempered):
            pf.step(lambda pf=pf, g=g: 5 * pf.particles(g))
    assert torch.equal(plain.raw_log_weights, tempered.raw_log_weights)
    assert torch.equal(plain.log_evidence, tempered.log_evidence)
    assert plain.ess < 4
    assert tempered.ess.item() == pytest.approx(4)
    assert 0 < tempered.temperature.item() < 1
    expected = (tempered.temperature * tempered.raw_log_weights).log_softmax(0)
    assert_close(tempered.log_weights, expected)
    raw = tempered.raw_log_weights.clone()
    tempered.predict(torch.randn(3, dtype=torch.float64))
    assert torch.equal(tempered.raw_log_weights, raw)


def test_the_dead_do_not_count_for_min_ess() -> None:
    log_weights = torch.tensor([-1.0, -9.0, -torch.inf, -torch.inf], dtype=torch.float64)
    log_weights = log_weights.log_softmax(0)
    tau = temperature_for(log_weights, 3.0)
    tempered = temper(log_weights, tau)
    assert effective_sample_size(tempered).item() == pytest.approx(2)
    assert tempered[2:].isneginf().all()


def test_predictions_combine_probabilities_or_logits():
    with pytest.raises(ValueError, match="got 'mean'"):
        weighted().predict(torch.ones(3), combine="mean")


def test_predicting_leaves_every_layer_in_its_mode() -> None:
    """A layer that was frozen into evaluation mode is not woken up."""

    def make() -> torch.nn.Module:
        module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
        module[1].eval()
        return module

    pf = gradient_filter(make, 2, kind=ol.AveragingParticles)
    particles = pf.particles
    x = torch.randn(5, 6)
    before = particles.get_buffer("1.running_mean").clone()
    pf.predict(x)
    particles(x)
    assert torch.equal(particles.get_buffer("1.running_mean"), before)
    assert particles.training
    particles.eval()
    pf.predict(x)
    assert not particles.training
    assert not particles.template.training
