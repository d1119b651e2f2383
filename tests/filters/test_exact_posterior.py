"""Linear losses, where the weighted filter is exact Bayes."""

import copy
from functools import partial
from itertools import permutations

import pytest
import torch
from tests.common import Point, assert_identical, gradient_filter, normal, points
from torch.optim import SGD
from torch.testing import assert_close

import orderless as ol

SIGMA2 = 0.1  # not a power of two: a rate rounded to float32 would show


def linear_losses(count: int = 4, dimensions: int = 3) -> list[tuple[torch.Tensor, float]]:
    g = normal(count, dimensions, seed=3, dtype=torch.float64)
    b = normal(count, seed=4, dtype=torch.float64)
    return list(zip(g, b.tolist(), strict=True))


def closed_form(x0: torch.Tensor, losses: list, sigma2: float) -> tuple:
    """Posterior of sum_i N(x_i, s2 I)/N under exp(-G.x - b): means, log-weights, log-evidence.

    E[exp(-G.x)] over N(x_i, s2 I) is exp(-G.x_i + s2 |G|^2 / 2), and the tilted component is
    N(x_i - s2 G, s2 I).
    """
    g = torch.stack([g for g, _ in losses]).sum(0)
    b = sum(b for _, b in losses)
    log_masses = -x0 @ g + sigma2 * g.dot(g) / 2 - b
    log_masses = log_masses - torch.tensor(float(len(x0)), dtype=torch.float64).log()
    evidence = log_masses.logsumexp(0)
    return x0 - sigma2 * g, log_masses - evidence, evidence


def run(losses: list, weighting: str, **options) -> ol.WeightedParticleFilter:
    pf = gradient_filter(
        Point, 5, partial(SGD, lr=SIGMA2), weighting=weighting, dtype=torch.float64, **options
    )
    for g, b in losses:
        pf.step(lambda g=g, b=b: pf.particles(g) + b)
    return pf


def assert_exact(pf: ol.WeightedParticleFilter, losses: list) -> None:
    means, log_weights, evidence = closed_form(points().x.detach(), losses, SIGMA2)
    found = pf.particles.x.detach(), pf.log_weights, pf.log_evidence
    assert_close(found, (means, log_weights, evidence), rtol=0, atol=1e-12)


@pytest.mark.parametrize("weighting", ["trapezoid", "linearized"])
@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_linear_losses_give_the_exact_posterior(weighting, order):
    losses = linear_losses()
    assert_exact(run([losses[i] for i in order], weighting), losses)


@pytest.mark.parametrize("weighting", ["trapezoid", "linearized"])
def test_a_weighed_penalty_is_part_of_the_loss(weighting):
    """loss + penalty, both linear: the posterior is that of their sum."""
    losses = linear_losses(2)
    pf = run([], weighting, weigh_penalty=True)
    (g, b), (g_penalty, b_penalty) = losses
    pf.step(lambda: pf.particles(g) + b, penalty=lambda: pf.particles(g_penalty) + b_penalty)
    assert_exact(pf, losses)


def test_identical_particles_keep_uniform_weights():
    """In float64: a batched product may round the losses of equal particles differently."""
    particles = ol.Ensemble.from_modules([Point().double()] * 7)
    pf = ol.WeightedParticleFilter(particles, SGD(particles.parameters(), lr=0.1))
    for g in torch.randn(20, 3).double():
        pf.step(lambda g=g: particles(g).square())
    uniform = torch.full((7,), 1 / 7, dtype=torch.float64)
    assert_close(pf.weights, uniform, rtol=0, atol=1e-14)
    assert pf.ess.item() == pytest.approx(7)


def test_evidence_read_earlier_does_not_change_later():
    pf = run(linear_losses(1), "trapezoid")
    earlier = pf.log_evidence, pf.log_weights
    before = copy.deepcopy(earlier)
    pf.step(lambda: pf.particles(torch.ones(3, dtype=torch.float64)))
    assert_identical(earlier, before)
    assert pf.log_evidence != before[0]
