"""Closed steps of quadratic penalties: Gaussian, stable at any strength, never applied twice."""

from functools import partial

import pytest
import torch
from tests.common import cross_entropy, gradient_filter, normal
from torch import nn
from torch.optim import SGD, Adam
from torch.testing import assert_close

import orderless as ol
from orderless.consolidation import EWC, SI

RATE = 0.1
OPTIMIZERS = {
    "sgd": partial(SGD, lr=RATE),
    "momentum": partial(SGD, lr=RATE, momentum=0.5),
    "adam": partial(Adam, lr=RATE),
}


class Point(nn.Module):
    """A network that is its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(5))

    def forward(self) -> torch.Tensor:
        return self.x


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 0.1


def anchored(kind: type, strength: float, optimizer: str = "sgd", closed: bool | None = None):
    """(filter, consolidation, curvature c, center m): one task is over, with values given here."""
    pf = gradient_filter(Point, 3, OPTIMIZERS[optimizer], dtype=torch.float64)
    consolidation = kind(pf.particles, strength)
    consolidation.importance["x"].copy_(positive(3, 5))
    consolidation.center["x"].copy_(positive(3, 5).sin())
    consolidation.tasks = 1
    pf.register(consolidation, closed)
    factor = strength if kind is EWC else 2 * strength  # SI's penalty has no 1/2
    return pf, consolidation, factor * positive(3, 5), positive(3, 5).sin()


def shrink(pf: ol.WeightedParticleFilter, **options) -> ol.filters.StepInfo:
    """A step on the loss |x|^2."""
    return pf.step(lambda: pf.particles().square().sum(1), **options)


@pytest.mark.parametrize("kind", [EWC, SI])
def test_one_step_on_a_linear_loss_is_the_gaussian_map(kind):
    # prior N(x, sigma^2), likelihood e^-gx, penalty N(m, 1/c): minimise the sum by Newton's rule
    pf, _, c, m = anchored(kind, 7.0)
    x, g = pf.particles.x.detach().clone(), positive(5) - 0.5
    pf.step(lambda: pf.particles() @ g)
    hessian, slope = 1 / RATE + c, g + c * (x - m)
    assert_close(pf.particles.x.detach(), x - slope / hessian)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("kind", [EWC, SI])
def test_a_penalty_that_is_registered_twice_or_also_passed_is_applied_once(kind, optimizer):
    """What is passed is reported."""
    alone, twice, passed = (anchored(kind, 3.0, optimizer) for _ in range(3))
    twice[0].register(twice[1])
    pf, penalized, c, m = passed
    value = ((c * (pf.particles.x - m).square()).sum(1) / 2).detach()
    infos = [shrink(pf, penalty=lambda: penalized.penalty() + 1.0) for _ in range(3)]
    assert_close(infos[0].penalty, value + 1.0)
    assert not penalized.penalty().requires_grad  # so a loss that contains it counts it once, too
    if kind is SI:
        penalized.end_task()
    for other, consolidation, _, _ in (alone, twice):
        for _ in range(3):
            shrink(other)
        if kind is SI:
            consolidation.end_task()
        assert torch.equal(other.particles.x, pf.particles.x)
        assert torch.equal(consolidation.importance["x"], penalized.importance["x"])


def test_closed_steps_leave_frozen_parameters_alone():
    pf = gradient_filter(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    ewc, x = EWC(pf.particles, 1.0), torch.ones(4, 2)
    pf.register(ewc, closed=True)
    for importance in ewc.importance.values():
        importance.fill_(1.0)
    ewc.tasks = 1
    first, second = (pf.particles.get_parameter(f"{i}.weight") for i in range(2))
    pf.step(lambda: pf.particles(x).square().mean((1, 2)))
    first.requires_grad_(False)
    before = first.clone(), second.clone()
    pf.step(lambda: pf.particles(x).square().mean((1, 2)))
    assert torch.equal(first, before[0]) and not torch.equal(second, before[1])


@pytest.mark.parametrize("strength", [1e-2, 1.0, 1e6])
@pytest.mark.parametrize(("optimizer", "steps"), [("sgd", 40), ("momentum", 80)])
def test_steps_on_a_quadratic_loss_reach_the_minimiser_of_loss_and_penalty(
    strength, optimizer, steps
):
    pf, _, c, m = anchored(EWC, strength, optimizer)
    target = positive(5).cos()
    for _ in range(steps):  # errors shrink by 1 - 5 RATE = 0.5 or sqrt(0.5) at least
        pf.step(lambda: 5 * (pf.particles() - target).square().sum(1) / 2)
    assert_close(pf.particles.x.detach(), (5 * target + c * m) / (5 + c))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("kind", [EWC, SI])
def test_endless_strength_leaves_the_anchor(kind, optimizer):
    pf, _, _, m = anchored(kind, 1e30, optimizer, closed=True)
    shrink(pf)
    assert_close(pf.particles.x.detach(), m, rtol=0, atol=1e-15)


def test_a_penalty_is_weighed_where_asked_for():
    pf, penalized, _, _ = anchored(EWC, 3.0)
    before = penalized.penalty().detach()
    pf.weigh_penalty = True
    info = shrink(pf)
    energy = info.loss_before + before + info.loss_after + penalized.penalty().detach()
    assert_close(pf.raw_log_weights, torch.log_softmax(-energy / 2, 0))


def test_linearized_weights_that_see_penalties_keep_them_in_the_gradient():
    pf, penalized, c, m = anchored(EWC, 3.0)
    options = {"weighting": "linearized", "weigh_penalty": True}
    pf = ol.WeightedParticleFilter(pf.particles, pf.optimizer, **options)
    pf.register(penalized)
    x = pf.particles.x.detach().clone()
    shrink(pf)
    assert_close(pf.particles.x.detach(), x - RATE * (2 * x + c * (x - m)))


def test_path_integral_of_closed_steps_is_the_step_squared_over_the_rate():
    # theta_new - theta = -lr (g + c (theta_new - theta*)), so omega grows by its square / lr
    pf, si, _, _ = anchored(SI, 7.0)
    si.importance["x"][0, 0] = -4.0  # a negative importance holds nothing
    before = pf.particles.x.detach().clone()
    shrink(pf)
    moved = pf.particles.x.detach() - before
    assert_close(si.path["x"], moved.square() / RATE)
    assert moved[0, 0] == pytest.approx(float(-RATE * 2 * before[0, 0]))


@pytest.mark.parametrize("method", [EWC, SI])
def test_strengths_of_the_literature_finish_with_plain_sgd(method):
    # van de Ven's 1e10 and 5e4 for SplitMNIST: the explicit step loses every particle here
    x = normal(64, 6)
    tasks = [(x, (x[:, k] > 0).long()) for k in range(3)]

    def losses(closed: bool) -> torch.Tensor:
        make = lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))  # noqa: E731
        pf = gradient_filter(make, 4)
        consolidation = method(pf.particles, 1e10)
        pf.register(consolidation, closed)
        for _, y in tasks:
            for _ in range(20):
                info = pf.step(
                    lambda y=y: cross_entropy(pf.particles(x), y), penalty=consolidation.penalty
                )
            consolidation.end_task((x, y))
        return info.loss_after

    assert losses(closed=True).isfinite().all()
    with pytest.raises(FloatingPointError, match="no particle"):
        losses(closed=False)
