"""Discrepancies against scipy, closed forms and plain double sums."""

import math

import pytest
import torch
from scipy.stats import energy_distance, wasserstein_distance

from orderless_lab.theory import (
    GridMixture,
    WeightedSet,
    bayes_update,
    grid,
    root_energy_distance,
    root_mmd,
    wasserstein_1,
)

ALL = [root_energy_distance, root_mmd, wasserstein_1]


def random_set(generator, n, dimension=1):
    positions = torch.randn(n, dimension, generator=generator, dtype=torch.float64)
    log_weights = 2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return WeightedSet(positions, log_weights)


def point(*coordinates):
    return WeightedSet(torch.tensor([coordinates], dtype=torch.float64), torch.zeros(1))


def double_sums(p, q, function):
    """(mean over p x q, p x p, q x q) of a function of two points, in plain Python."""
    (x, w), (y, v) = ((s.positions, s.log_weights.softmax(0)) for s in (p, q))

    def mean(x, w, y, v):
        return sum(
            float(wi * vj * function(xi, yj))
            for xi, wi in zip(x, w, strict=True)
            for yj, vj in zip(y, v, strict=True)
        )

    return mean(x, w, y, v), mean(x, w, x, w), mean(y, v, y, v)


@pytest.mark.parametrize("discrepancy", ALL)
def test_the_triangle_inequality_holds_on_random_triples(discrepancy):
    generator = torch.Generator().manual_seed(0)
    for dimension in (1,) if discrepancy is wasserstein_1 else (1, 5):
        for _ in range(40):
            p, q, r = (random_set(generator, n, dimension) for n in (3, 5, 8))
            r = WeightedSet(r.positions / 4 + p.positions[0], r.log_weights)  # r near p
            assert discrepancy(p, q) <= discrepancy(p, r) + discrepancy(r, q) + 1e-12
            assert discrepancy(p, q) == pytest.approx(discrepancy(q, p), rel=1e-12)


def test_the_squares_do_not_obey_the_triangle_inequality():
    # for the Gaussian kernel about h^2 each way
    squared = [root_mmd(point(0.0), point(x)) ** 2 for x in (0.5, 1.0)]
    assert squared[1] > 2 * squared[0]
    p = WeightedSet(torch.tensor([[0.0], [1.0]]), torch.zeros(2))
    q = point(0.0)
    r = WeightedSet(torch.tensor([[0.0], [1.0]]), torch.tensor([0.75, 0.25]).log())
    squared = [root_energy_distance(*pair) ** 2 for pair in ((p, q), (p, r), (r, q))]
    assert squared[0] > squared[1] + squared[2]


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
def test_energy_and_mmd_agree_with_plain_double_sums(dimension):
    generator = torch.Generator().manual_seed(3)
    p, q = random_set(generator, 5, dimension), random_set(generator, 3, dimension)
    between, in_p, in_q = double_sums(p, q, lambda x, y: (x - y).norm())
    assert root_energy_distance(p, q) ** 2 == pytest.approx(2 * between - in_p - in_q, rel=1e-10)
    between, in_p, in_q = double_sums(
        p, q, lambda x, y: torch.exp(-(x - y).square().sum() / (2 * 0.6**2))
    )
    squared = root_mmd(p, q, 0.6) ** 2
    assert squared == pytest.approx(in_p + in_q - 2 * between, rel=1e-10)


def test_a_small_move_counts_linearly_except_in_the_root_energy_distance():
    for discrepancy, factor in (
        (wasserstein_1, 2.0),
        (root_mmd, 2.0),
        (root_energy_distance, math.sqrt(2)),
    ):
        near = discrepancy(point(0.0), point(1e-4))
        ratio = discrepancy(point(0.0), point(2e-4)) / near
        assert ratio == pytest.approx(factor, rel=1e-4)


def test_a_grid_density_is_a_weighted_set_and_bayes_gives_the_conjugate_posterior():
    nodes = grid(-9.0, 9.0, 4001)
    prior = GridMixture(nodes, 1.0)(point(0.0))
    posterior = bayes_update(prior, lambda x: (x[:, 0] - 2.0) ** 2 / 2)
    exact = GridMixture(nodes, 0.5)(point(1.0))  # N(0, 1) times N(2, 1) is N(1, 1/2)
    assert wasserstein_1(posterior, exact) < 1e-12
    # Between N(0, 1) and N(1, 1) the distance is 1: the grid's sum of a smooth density is exact.
    assert wasserstein_1(prior, GridMixture(nodes, 1.0)(point(1.0))) == pytest.approx(1, rel=1e-9)


def test_a_particle_of_weight_zero_does_not_count():
    p = WeightedSet(torch.tensor([[0.0], [9.0]]), torch.tensor([0.0, -torch.inf]))
    assert wasserstein_1(p, point(0.0)) == root_energy_distance(p, point(0.0)) == 0.0


@pytest.mark.parametrize(
    ("discrepancy", "p", "q", "message"),
    [
        (root_mmd, point(0.0), point(0.0, 0.0), "dimensions, 1 and 2"),
        (wasserstein_1, point(0.0, 0.0), point(0.0, 1.0), "one dimension only, got 2"),
        (root_mmd, WeightedSet(torch.zeros(3), torch.zeros(3)), point(0.0), r"\(3,\)"),
        (root_mmd, point(math.nan), point(0.0), "must be finite"),
        (
            root_mmd,
            WeightedSet(torch.zeros(1, 1), torch.full((1,), -torch.inf)),
            point(0.0),
            "-inf",
        ),
    ],
)
def test_bad_sets_are_named(discrepancy, p, q, message):
    with pytest.raises(ValueError, match=message):
        discrepancy(p, q)
