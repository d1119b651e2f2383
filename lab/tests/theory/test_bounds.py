"""The bounds: algebra against the recursions they come from, and Theorem 3 on a real filter."""

import pytest
import torch
from lab.studies.theory import linear_losses, logistic_losses, make_filter
from lab.tests.toys import point, run_of, weighted_set

from orderless_lab.theory import (
    Comparisons,
    FilterUpdate,
    GridMixture,
    WeightedSet,
    adjacent_swap_bound,
    bayes_update,
    constants_of_swaps,
    constants_of_trajectory,
    direct_bound,
    filter_set,
    grid,
    log_posterior_ratios,
    positions_of,
    root_energy_distance,
    theorem_1,
    theorem_2,
    unrolled_bound,
    wasserstein_1,
)


@pytest.mark.parametrize("C", [0.0, 0.3, 1.0, 1.7])
def test_the_unrolled_bound_is_the_recursion(C):
    discrepancy = 0.4
    for length in range(8):
        assert unrolled_bound(C, 0.1, length, 0.4) == pytest.approx(discrepancy)
        discrepancy = C * discrepancy + 0.1


def test_at_c_equal_to_one_the_bounds_are_finite_and_continuous():
    assert theorem_1(1.0, 0.5, 6, 3) == 2 * 3 * 0.5 * 2
    for bound in (
        lambda C: theorem_1(C, 0.5, 6, 3),
        lambda C: theorem_2(C, 0.5, 1.0, 0.5, 1.0, 6, 2),
    ):
        for near in (1 - 1e-9, 1 + 1e-9):
            assert bound(near) == pytest.approx(bound(1.0), rel=1e-7)


def test_theorem_1_is_the_dearest_of_its_swaps_and_the_printed_form_agrees_above_one():
    for C in (0.5, 1.0, 1.3):
        dearest = max(adjacent_swap_bound(C, 0.2, later) for later in range(6))  # T = 7
        assert theorem_1(C, 0.2, 7, 4) == pytest.approx(4 * dearest)
    printed = 2 * 4 * 0.2 * 1.3**5 * (1.3**2 - 1) / (1.3 - 1)
    assert theorem_1(1.3, 0.2, 7, 4) == pytest.approx(printed)
    assert theorem_1(1.3, 0.2, 7, 4, as_printed=True) == pytest.approx(printed)


def test_the_printed_theorem_1_fails_below_c_equal_to_one():
    """A filter that keeps the last loss only: C = 0, and the last loss decides the result."""
    nodes = grid(-3.0, 3.0, 61)

    def forgetful(_, loss):
        return WeightedSet(nodes, -loss(nodes))

    losses = [lambda x, c=c: (x[:, 0] - c) ** 2 for c in (-1.0, 0.0, 1.0)]
    start = WeightedSet(nodes, torch.zeros(61, dtype=torch.float64))
    order = [0, 2, 1]
    measured = wasserstein_1(forgetful(start, losses[2]), forgetful(start, losses[1]))
    found = constants_of_swaps(forgetful, start, losses, order, wasserstein_1)
    assert found.C == 0.0 and measured > 0.5
    assert theorem_1(found.C, found.epsilon, 3, 1, as_printed=True) == 0.0
    assert theorem_1(found.C, found.epsilon, 3, 1) >= measured


@pytest.mark.parametrize("C", [0.4, 1.0, 1.5])
def test_theorem_2_sums_the_swaps_that_move_the_loss_to_the_end(C):
    length = 6
    place = 2
    arguments = (C, 0.1, 3.0, 0.8, 2.0, length, place)  # epsilon, k, beta, M
    # L_i passes L_{i+1} first (length - place - 1 updates follow) and L_T last (none follow).
    passes = sum(adjacent_swap_bound(C, 0.1, length - j) for j in range(place + 1, length + 1))
    printed = 2 * length * 0.1 * C ** (length - 2) * (C + 1)
    assert theorem_2(*arguments) == pytest.approx(0.8 * 2.0 + 3.0 * passes)
    assert theorem_2(*arguments, form="printed") == pytest.approx(0.8 * 2.0 + 3.0 * printed)
    by_theorem_1 = theorem_1(C, 0.1, length, length - place)
    assert passes <= by_theorem_1 + 1e-12
    assert C < 1 or by_theorem_1 < printed


def test_theorem_3_the_weights_ratio_is_the_likelihood_ratio_at_the_final_positions():
    losses = linear_losses(6, dimension=3, seed=5)
    pf = make_filter("weighted", n=7, dimension=3)
    for loss in losses:
        pf.step(lambda loss=loss: loss(positions_of(pf.particles)))
    end = filter_set(pf)
    of_weights = end.log_weights[:, None] - end.log_weights[None, :]
    assert torch.allclose(of_weights, log_posterior_ratios(end.positions, losses), atol=1e-12)


def test_theorem_3_an_equal_prior_at_the_start_does_not_make_it_the_posterior_ratio():
    losses = linear_losses(6, seed=5)
    start = weighted_set([-1.0, 1.0], [0.5, 0.5])
    end = run_of(FilterUpdate(make_filter("weighted", n=2)), start, losses)

    def gaussian(x):
        return -(x[:, 0] ** 2) / 2

    assert gaussian(start.positions)[0] == gaussian(start.positions)[1]
    ratio = float(end.log_weights[0] - end.log_weights[1])
    likelihood = float(log_posterior_ratios(end.positions, losses)[0, 1])
    posterior = float(log_posterior_ratios(end.positions, losses, gaussian)[0, 1])
    # Both particles moved by s, so the priors' logarithms now differ by (1 + s)^2/2 - (s - 1)^2/2.
    moved = float(end.positions[0, 0] + 1.0)
    assert abs(moved) > 0.05
    assert ratio == pytest.approx(likelihood, abs=1e-12)
    assert posterior == pytest.approx(ratio + 2 * moved, abs=1e-12)


@pytest.mark.parametrize("kind", ["weighted", "sir"])
def test_the_direct_bound_holds_for_two_runs_with_the_constants_of_both(kind):
    losses = logistic_losses(5, seed=3)
    start, update = filter_set(make_filter(kind, n=10)), FilterUpdate(make_filter(kind, n=10))
    runs = losses, [losses[t] for t in (3, 0, 4, 2, 1)]
    ends = [run_of(update, start, given) for given in runs]
    found = [constants_of_trajectory(update, start, start, g, wasserstein_1) for g in runs]
    bound = direct_bound(max(c.C for c in found), max(c.epsilon for c in found), 5)
    assert 0 < wasserstein_1(*ends) <= bound


@pytest.mark.parametrize(
    ("discrepancy", "spread"), [(wasserstein_1, 0.5), (root_energy_distance, 3.0)]
)
def test_weighing_by_likelihood_needs_c_of_e_to_the_spread_of_the_loss(discrepancy, spread):
    """A set with a share d at b, where the loss is lower, against a set that lies wholly at a.

    The distance is linear in the share (of the root energy distance too: two points), and the
    share grows from d to d e^(L(a) - L(b)) as d -> 0. The Bayes update itself needs this C.
    """
    share = 1e-6
    p = weighted_set([0.0, 1.0], [1 - share, share])
    q = weighted_set([0.0, 1.0], [1.0, 0.0])

    def loss(x):
        return spread * (1 - x[:, 0])

    for update in (bayes_update, FilterUpdate(make_filter("weighted", 1e-9, n=2))):
        comparisons = Comparisons(update, discrepancy)
        comparisons.contraction(p, q, loss)
        grown = torch.tensor(spread).exp().item()
        assert pytest.approx(grown, rel=1e-4) == comparisons.constants().C


@pytest.mark.parametrize("least", [0.0, 0.3])
def test_beta_is_below_one_only_where_the_least_loss_is_zero(least):
    """At a minimiser with L* > 0 the expected loss cannot fall: beta >= 1, and Theorem 2 says M."""
    update = FilterUpdate(make_filter("weighted", n=2))
    comparisons = Comparisons(update, wasserstein_1)
    for place in (0.0, 0.5):  # the minimiser, and a place from which there is a way down
        comparisons.descent(weighted_set([place] * 2, [0.5] * 2), lambda x: x[:, 0] ** 2 + least)
    beta = comparisons.constants().beta
    assert beta == 1.0 if least else beta < 1.0


def test_with_curvature_the_fixed_width_of_the_mixture_is_wrong():
    """One particle, L = a/2 x^2: the posterior narrows by 1 + a sigma^2, the filter's does not."""
    sigma2, a = 0.25, 2.0
    mixture = GridMixture(grid(-8.0, 8.0, 1601), sigma2)
    p = point(1.0)

    def loss(x):
        return a / 2 * x[:, 0] ** 2

    def variance(density):
        weights, x = density.log_weights.softmax(0), density.positions[:, 0]
        return float(weights @ x**2 - (weights @ x) ** 2)

    moved = FilterUpdate(make_filter("weighted", sigma2, n=1))(p, loss)
    assert variance(mixture(moved)) == pytest.approx(sigma2)
    assert variance(bayes_update(mixture(p), loss)) == pytest.approx(sigma2 / (1 + a * sigma2))


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (lambda: theorem_1(1.0, 0.1, 1, 0), "length .* got 1"),
        (lambda: theorem_1(1.0, 0.1, 3, 4), "3 swaps apart, got 4"),
        (lambda: unrolled_bound(-1.0, 0.1, 3), "C .* got -1"),
        (lambda: theorem_2(1.0, 0.1, 1.0, 1.0, 1.0, 4, 0), "place .* got 0"),
        (lambda: theorem_2(1.0, 0.1, 1.0, 1.0, 1.0, 4, 1, form="loose"), "form .*'loose'"),
    ],
)
def test_bad_arguments_are_named(bound, message):
    with pytest.raises(ValueError, match=message):
        bound()
