"""Closed steps of quadratic penalties: Gaussian, stable at any strength, never applied twice."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import orderless as ol
from orderless.consolidation import EWC, SI

RATE = 0.1
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=RATE),
    "momentum": lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=RATE),
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
    particles = ol.Ensemble(Point, 3, seed=1).double()
    consolidation = kind(particles, strength)
    consolidation.importance["x"].copy_(positive(3, 5))
    consolidation.center["x"].copy_(positive(3, 5).sin())
    consolidation.tasks = 1
    pf = ol.WeightedParticleFilter(particles, OPTIMIZERS[optimizer](particles.parameters()))
    pf.register(consolidation, closed)
    factor = strength if kind is EWC else 2 * strength  # SI's penalty has no 1/2
    return pf, consolidation, factor * positive(3, 5), positive(3, 5).sin()


@pytest.mark.parametrize("kind", [EWC, SI])
def test_one_step_on_a_linear_loss_is_the_gaussian_map(kind):
    # prior N(x, sigma^2), likelihood e^-gx, penalty N(m, 1/c): minimise the sum by Newton's rule
    pf, _, c, m = anchored(kind, 7.0)
    x, g = pf.particles.x.detach().clone(), positive(5) - 0.5
    pf.step(lambda: pf.particles() @ g)
    hessian, slope = 1 / RATE + c, g + c * (x - m)
    torch.testing.assert_close(pf.particles.x.detach(), x - slope / hessian)


@pytest.mark.parametrize("kind", [EWC, SI])
def test_a_penalty_that_is_registered_twice_is_applied_once(kind):
    filters = [anchored(kind, 7.0)[0] for _ in range(2)]
    filters[1].register(*filters[1].hooks)
    for pf in filters:
        for _ in range(2):
            pf.step(lambda pf=pf: pf.particles().square().sum(1))
        pf.hooks[0].end_task() if kind is SI else None
    assert torch.equal(filters[0].particles.x, filters[1].particles.x)
    importances = [pf.hooks[0].importance["x"] for pf in filters]
    assert torch.equal(*importances)


def test_closed_steps_leave_frozen_parameters_alone():
    particles = ol.Ensemble(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 3, seed=1)
    pf = ol.WeightedParticleFilter(particles, OPTIMIZERS["sgd"](particles.parameters()))
    ewc, x = EWC(particles, 1.0), torch.ones(4, 2)
    pf.register(ewc, closed=True)
    for importance in ewc.importance.values():
        importance.fill_(1.0)
    ewc.tasks = 1
    first, second = (dict(particles.named_parameters())[f"{i}.weight"] for i in range(2))
    pf.step(lambda: particles(x).square().mean((1, 2)))
    first.requires_grad_(False)
    before = first.clone(), second.clone()
    pf.step(lambda: particles(x).square().mean((1, 2)))
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
    torch.testing.assert_close(pf.particles.x.detach(), (5 * target + c * m) / (5 + c))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("kind", [EWC, SI])
def test_endless_strength_leaves_the_anchor(kind, optimizer):
    pf, _, _, m = anchored(kind, 1e30, optimizer, closed=True)
    pf.step(lambda: pf.particles().square().sum(1))
    torch.testing.assert_close(pf.particles.x.detach(), m, rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", [EWC, SI])
def test_difference_from_the_explicit_step_is_of_fourth_order_in_sigma(kind):
    g = positive(5) - 0.5
    errors = []
    for strength in (1e-3, 1e-4):
        steps = []
        for closed in (True, False):
            pf, penalized, c, _ = anchored(kind, strength, closed=closed)
            pf.step(lambda pf=pf: pf.particles() @ g, penalty=lambda p=penalized: p.penalty())
            steps.append(pf.particles.x.detach())
        errors.append(float((steps[0] - steps[1] - RATE**2 * c * g).abs().max()))
    assert 0 < errors[0] < 1e-6  # sigma^4 c^2 is at most 5e-8, the term above up to 1e-5
    assert errors[1] == pytest.approx(errors[0] / 100, rel=1e-2)  # O(lambda^2)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("kind", [EWC, SI])
def test_a_registered_penalty_that_is_also_passed_is_reported_and_not_applied_twice(
    kind, optimizer
):
    alone, _, _, _ = anchored(kind, 3.0, optimizer)
    both, penalized, c, m = anchored(kind, 3.0, optimizer)
    value = ((c * (both.particles.x - m).square()).sum(1) / 2).detach()
    for _ in range(3):
        alone.step(lambda: alone.particles().square().sum(1))
    infos = [
        both.step(
            lambda: both.particles().square().sum(1), penalty=lambda: penalized.penalty() + 1.0
        )
        for _ in range(3)
    ]
    torch.testing.assert_close(infos[0].penalty, value + 1.0)
    assert torch.equal(alone.particles.x, both.particles.x)
    assert not penalized.penalty().requires_grad  # so a loss that contains it counts it once, too


def test_a_penalty_is_weighed_where_asked_for():
    pf, penalized, _, _ = anchored(EWC, 3.0)
    before = penalized.penalty().detach()
    pf.weigh_penalty = True
    info = pf.step(lambda: pf.particles().square().sum(1))
    energy = info.loss_before + before + info.loss_after + penalized.penalty().detach()
    torch.testing.assert_close(pf.raw_log_weights, torch.log_softmax(-energy / 2, 0))


def test_linearized_weights_that_see_penalties_keep_them_in_the_gradient():
    pf, penalized, c, m = anchored(EWC, 3.0)
    options = {"weighting": "linearized", "weigh_penalty": True}
    pf = ol.WeightedParticleFilter(pf.particles, pf.optimizer, **options)
    pf.register(penalized)
    x = pf.particles.x.detach().clone()
    pf.step(lambda: pf.particles().square().sum(1))
    torch.testing.assert_close(pf.particles.x.detach(), x - RATE * (2 * x + c * (x - m)))


def test_path_integral_of_closed_steps_is_the_step_squared_over_the_rate():
    # theta_new - theta = -lr (g + c (theta_new - theta*)), so omega grows by its square / lr
    pf, si, _, _ = anchored(SI, 7.0)
    si.importance["x"][0, 0] = -4.0  # a negative importance holds nothing
    before = pf.particles.x.detach().clone()
    pf.step(lambda: pf.particles().square().sum(1))
    moved = pf.particles.x.detach() - before
    torch.testing.assert_close(si.path["x"], moved.square() / RATE)
    assert moved[0, 0] == pytest.approx(float(-RATE * 2 * before[0, 0]))


@pytest.mark.parametrize("method", [EWC, SI])
def test_strengths_of_the_literature_finish_with_plain_sgd(method):
    # van de Ven's 1e10 and 5e4 for SplitMNIST: the explicit step loses every particle here
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    tasks = [(x, (x[:, k] > 0).long()) for k in range(3)]
    loss = ol.per_particle(F.cross_entropy)

    def losses(closed: bool) -> torch.Tensor:
        make = lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))  # noqa: E731
        particles = ol.Ensemble(make, 4, seed=0)
        pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
        consolidation = method(particles, 1e10)
        pf.register(consolidation, closed)
        for x, y in tasks:
            for _ in range(20):
                info = pf.step(
                    lambda x=x, y=y: loss(particles(x), y), penalty=consolidation.penalty
                )
            consolidation.end_task((x, y))
        return info.loss_after

    assert losses(closed=True).isfinite().all()
    with pytest.raises(FloatingPointError, match="no particle"):
        losses(closed=False)


def test_what_has_no_closed_step_is_refused_in_a_sentence():
    particles = ol.Ensemble(Point, 2)
    pf = ol.WeightedParticleFilter(particles, torch.optim.Adam(particles.parameters()))
    with pytest.raises(ValueError, match="descent by torch.optim.SGD, got a Adam: .*closed=False"):
        pf.register(EWC(particles), closed=True)
    with pytest.raises(ValueError, match="a LwF has no closed step"):
        pf.register(ol.LwF(particles), closed=True)
