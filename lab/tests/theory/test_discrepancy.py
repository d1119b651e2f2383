"""Discrepancies against scipy, closed forms and plain double sums."""

import math

import pytest
import torch
from lab.tests.toys import point, weighted_set
from scipy.stats import energy_distance, wasserstein_distance

from orderless_lab.theory import (
    GridMixture,
    WeightedSet,
    bayes_update,
    grid,
    root_energy_distance,
    wasserstein_1,
)

ALL = [root_energy_distance, wasserstein_1]


def random_set(generator, n, dimension=1):
    positions = torch.randn(n, dimension, generator=generator, dtype=torch.float64)
    log_weights = 2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return WeightedSet(positions, log_weights)


@pytest.mark.parametrize("discrepancy", ALL)
def test_the_triangle_inequality_holds_on_random_triples(discrepancy):
    generator = torch.Generator().manual_seed(0)
    for dimension in (1,) if discrepancy is wasserstein_1 else (1, 5):
        for _ in range(40):
            p, q, r = (random_set(generator, n, dimension) for n in (3, 5, 8))
            r = WeightedSet(r.positions / 4 + p.positions[0], r.log_weights)  # r near p
            assert discrepancy(p, q) <= discrepancy(p, r) + discrepancy(r, q) + 1e-12
            assert discrepancy(p, q) == pytest.approx(discrepancy(q, p), rel=1e-12)


@pytest.mark.parametrize("discrepancy", ALL)
def test_equal_sets_are_at_zero_also_when_a_particle_is_split_in_two(discrepancy):
    generator = torch.Generator().manual_seed(1)
    for dimension in (1,) if discrepancy is wasserstein_1 else (1, 3):
        p = random_set(generator, 6, dimension)
        split = WeightedSet(
            torch.cat([p.positions, p.positions[:1]]),
            torch.cat([p.log_weights, p.log_weights[:1]])
            + torch.tensor([0.25, 1, 1, 1, 1, 1, 0.75], dtype=torch.float64).log(),
        )
        shuffled = WeightedSet(split.positions.flip(0), split.log_weights.flip(0) + 700.0)
        assert discrepancy(p, p) == 0.0
        # Masses are right to 1e-16 or so; the 700 added to all log-weights costs three digits.
        assert discrepancy(p, split) < 1e-14
        assert discrepancy(p, shuffled) < 1e-11
        assert discrepancy(p, random_set(generator, 6, dimension)) > 1e-2


def test_one_dimension_agrees_with_scipy():
    generator = torch.Generator().manual_seed(2)
    for n, m in ((1, 4), (7, 7), (30, 11)):
        p, q = random_set(generator, n), random_set(generator, m)
        arguments = [s.positions[:, 0].numpy() for s in (p, q)]
        arguments += [s.log_weights.softmax(0).numpy() for s in (p, q)]
        assert wasserstein_1(p, q) == pytest.approx(wasserstein_distance(*arguments), rel=1e-12)
        # scipy's energy_distance is already the root, sqrt(2) times the L2 gap of the CDFs.
        assert root_energy_distance(p, q) == pytest.approx(energy_distance(*arguments), rel=1e-12)


@pytest.mark.parametrize("dimension", [1, 4])
def test_the_energy_distance_agrees_with_a_plain_double_sum(dimension):
    generator = torch.Generator().manual_seed(3)
    p, q = random_set(generator, 5, dimension), random_set(generator, 3, dimension)
    points = torch.cat([p.positions, q.positions])
    masses = torch.cat([p.log_weights.softmax(0), -q.log_weights.softmax(0)])
    squared = 0.0  # - sum_ij mu_i mu_j |z_i - z_j| with mu = p - q
    for x, mass in zip(points, masses, strict=True):
        for y, other in zip(points, masses, strict=True):
            squared -= float(mass * other * (x - y).norm())
    assert root_energy_distance(p, q) ** 2 == pytest.approx(squared, rel=1e-10)


def test_a_grid_density_is_a_weighted_set_and_bayes_gives_the_conjugate_posterior():
    nodes = grid(-9.0, 9.0, 4001)
    prior = GridMixture(nodes, 1.0)(point(0.0))
    posterior = bayes_update(prior, lambda x: (x[:, 0] - 2.0) ** 2 / 2)
    exact = GridMixture(nodes, 0.5)(point(1.0))  # N(0, 1) times N(2, 1) is N(1, 1/2)
    assert wasserstein_1(posterior, exact) < 1e-12
    # Between N(0, 1) and N(1, 1) the distance is 1: the grid's sum of a smooth density is exact.
    assert wasserstein_1(prior, GridMixture(nodes, 1.0)(point(1.0))) == pytest.approx(1, rel=1e-9)


def test_a_particle_of_weight_zero_does_not_count():
    p = weighted_set([0.0, 9.0], [1.0, 0.0])
    assert wasserstein_1(p, point(0.0)) == root_energy_distance(p, point(0.0)) == 0.0


@pytest.mark.parametrize(
    ("p", "message"),
    [
        (point(0.0, 0.0), "one dimension only, got 2"),
        (WeightedSet(torch.zeros(3), torch.zeros(3)), r"\(3,\)"),
        (point(math.nan), "must be finite"),
        (WeightedSet(torch.zeros(1, 1), torch.full((1,), -torch.inf)), "must be finite"),
    ],
)
def test_bad_sets_are_named(p, message):
    with pytest.raises(ValueError, match=message):
        wasserstein_1(p, p)
