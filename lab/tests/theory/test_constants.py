"""Measured constants: closed forms, and the theorems with the constants of their own proofs."""

import pytest
import torch
import torch.nn.functional as F
from lab.studies.theory import SIGMA2, linear_losses, logistic_losses, make_filter
from lab.tests.toys import point, run_of
from torch import nn

import orderless as ol
from orderless_lab.theory import (
    Comparisons,
    FilterUpdate,
    GridMixture,
    adjacent_swaps,
    bayes_update,
    constants_of_swaps,
    constants_of_trajectory,
    expected_loss,
    filter_set,
    grid,
    order_at_distance,
    positions_of,
    root_energy_distance,
    theorem_1,
    theorem_2,
    unrolled_bound,
    wasserstein_1,
)
from orderless_lab.theory.constants import points

MIXTURE = GridMixture(grid(-8.0, 8.0, 161), SIGMA2)


def test_gradient_descent_on_a_parabola_has_closed_form_constants():
    """x -> (1 - sigma^2 a) x under L = a x^2 / 2, with W1 between single points."""
    a = 3.0
    shrink = 1 - SIGMA2 * a
    left = point(-2.0)
    right = point(0.5)
    comparisons = Comparisons(FilterUpdate(make_filter("descent", SIGMA2)), wasserstein_1)

    def loss(x):
        return a * x[:, 0] ** 2 / 2

    comparisons.contraction(left, right, loss)
    comparisons.difference(left, right, loss)
    comparisons.descent(left, loss)
    comparisons.fidelity(left, left, loss)
    found = comparisons.constants()
    assert pytest.approx(shrink) == found.C
    assert found.epsilon == pytest.approx(SIGMA2 * a * 2.0)  # Bayes does not move a point
    assert found.k == pytest.approx(a * 1.5 / 2)  # |L(x) - L(y)| / |x - y| = a |x + y| / 2
    assert found.beta == pytest.approx(shrink**2)
    assert found.loss_bound == pytest.approx(a * 4 / 2)


def test_linear_losses_have_epsilon_zero_for_the_mixture_and_not_for_the_points():
    update = FilterUpdate(make_filter("weighted", n=12))
    p = filter_set(make_filter("weighted", n=12, seed=1))
    smooth = Comparisons(update, wasserstein_1, MIXTURE)
    rough = Comparisons(update, wasserstein_1)
    for loss in linear_losses(3):
        smooth.fidelity(p, MIXTURE(p), loss)
        rough.fidelity(p, p, loss)
    assert smooth.constants().epsilon < 1e-12
    assert rough.constants().epsilon > 1e-2


def test_k_for_wasserstein_1_stays_below_the_lipschitz_constant():
    """By Kantorovich duality sup over all p, q is the Lipschitz constant of the loss."""
    sets = [filter_set(make_filter("weighted", n=10, seed=seed)) for seed in range(4)]
    sets += [point(20.0), point(21.0)]
    comparisons = Comparisons(lambda p, loss: p, wasserstein_1)
    for p in sets:
        for q in sets:
            comparisons.difference(p, q, lambda x: F.softplus(2.5 * x[:, 0]))
    assert 2.4 < comparisons.constants().k <= 2.5 + 1e-12


UPDATES = [
    ("weighted", 1, wasserstein_1, MIXTURE),
    ("averaging", 1, root_energy_distance, MIXTURE),
    ("sir", 1, wasserstein_1, points),
    ("weighted", 2, root_energy_distance, points),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dimension", "discrepancy", "represent"), UPDATES)
def test_theorems_1_and_2_hold_with_the_constants_of_their_proofs(
    kind, dimension, discrepancy, represent
):
    """Any update at all obeys them with constants taken on the sets that the proof compares."""
    length = 4
    losses = logistic_losses(length, dimension, seed=3)
    build = {"n": 10, "dimension": dimension}
    start = filter_set(make_filter(kind, **build))
    update = FilterUpdate(make_filter(kind, **build))
    ahead = run_of(update, start, losses)
    slack = 1 + 1e-9  # rounding

    for swaps, seed in ((1, 2), (3, 1), (6, 0)):
        order = order_at_distance(length, swaps, seed)
        found = constants_of_swaps(update, start, losses, order, discrepancy, represent=represent)
        measured = discrepancy(
            represent(ahead), represent(run_of(update, start, [losses[t] for t in order]))
        )
        assert 0 < measured <= slack * theorem_1(found.C, found.epsilon, length, swaps)

    for place in (1, 3, length):
        order = [t for t in range(length) if t != place - 1] + [place - 1]
        assert adjacent_swaps(order) == length - place
        found = constants_of_swaps(update, start, losses, order, discrepancy, represent=represent)
        constants = (found.C, found.epsilon, found.k, found.beta, found.loss_bound)
        end_loss = expected_loss(represent(ahead), losses[place - 1])
        assert end_loss <= slack * theorem_2(*constants, length, place)


@pytest.mark.parametrize(("kind", "represent"), [("weighted", MIXTURE), ("sir", points)])
def test_the_unrolled_bound_holds_along_a_run_from_another_prior(kind, represent):
    losses = logistic_losses(5, seed=4)
    prior = GridMixture(MIXTURE.nodes, 1.0)(point(0.0))  # N(0, 1), which particles sample
    start = filter_set(make_filter(kind, n=10))
    update = FilterUpdate(make_filter(kind, n=10))
    found = constants_of_trajectory(
        update, start, prior, losses, wasserstein_1, represent=represent
    )
    posterior = run_of(bayes_update, prior, losses)
    measured = wasserstein_1(represent(run_of(update, start, losses)), posterior)
    initial = wasserstein_1(represent(start), prior)
    bound = unrolled_bound(found.C, found.epsilon, len(losses), initial)
    assert 0 < measured <= bound * (1 + 1e-9)


def test_comparisons_of_equal_sets_bind_nothing_and_impossible_ones_are_infinite():
    comparisons = Comparisons(lambda p, loss: p, wasserstein_1)
    comparisons.contraction(point(1.0), point(1.0), lambda x: x[:, 0])
    assert comparisons.constants().C == 0.0
    drifting = iter([point(0.0), point(1.0)])
    comparisons = Comparisons(lambda p, loss: next(drifting), wasserstein_1)
    comparisons.contraction(point(1.0), point(1.0), lambda x: x[:, 0])
    assert float("inf") == comparisons.constants().C
    comparisons = Comparisons(lambda p, loss: p, wasserstein_1)
    comparisons.descent(point(-1.0), lambda x: x[:, 0])
    assert comparisons.constants().beta == float("inf")


def test_a_filter_update_is_one_step_of_the_filter_and_keeps_weights():
    loss_1, loss_2 = logistic_losses(2)
    stepped = make_filter("weighted", n=6)
    update = FilterUpdate(make_filter("weighted", n=6))
    p = filter_set(stepped)
    for loss in (loss_1, loss_2):
        stepped.step(lambda loss=loss: loss(stepped.particles.x))
        p = update(p, loss)
    assert torch.allclose(p.positions, filter_set(stepped).positions, atol=1e-14)
    assert torch.allclose(p.log_weights, filter_set(stepped).log_weights, atol=1e-13)


def test_the_map_of_a_filter_does_not_change_when_the_filter_steps_on():
    """Adam's moments are a part of the state in which the map was made."""
    [loss] = logistic_losses(1)

    def stepped():
        particles = ol.Ensemble(lambda: nn.Linear(1, 1, bias=False), 3, seed=0).double()
        pf = ol.WeightedParticleFilter(particles, torch.optim.Adam(particles.parameters(), lr=0.1))
        pf.step(lambda: loss(positions_of(particles)))
        return pf

    pf = stepped()
    start = filter_set(pf)
    expected = FilterUpdate(stepped())
    update = FilterUpdate(pf)
    pf.step(lambda: loss(positions_of(pf.particles)))
    for found, wanted in zip(update(start, loss), expected(start, loss), strict=True):
        assert torch.equal(found, wanted)


def test_networks_with_buffers_are_refused():
    normed = ol.Ensemble(lambda: nn.BatchNorm1d(2), 3)
    optimizer = torch.optim.SGD(normed.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="buffers"):
        FilterUpdate(ol.WeightedParticleFilter(normed, optimizer))
