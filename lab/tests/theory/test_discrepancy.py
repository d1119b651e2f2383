"""Discrepancies against scipy, closed forms and plain double sums."""

import math

import pytest
import torch
from scipy.stats import energy_distance, wasserstein_distance

from orderless_lab.theory import (
    GridMixture,
    WeightedSet,
    bayes_update,
    gaussian_kernel,
    grid,
    root_energy_distance,
    root_mmd,
    wasserstein_1,
)


def laplace_mmd(p, q):
    return root_mmd(p, q, lambda x, y: (-torch.cdist(x, y) / 0.7).exp())


ANY_DIMENSION = [root_energy_distance, root_mmd, laplace_mmd]
ALL = [*ANY_DIMENSION, wasserstein_1]


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
    dimensions = (1,) if discrepancy is wasserstein_1 else (1, 2, 5)
    for dimension in dimensions:
        for _ in range(60):
            p, q, r = (random_set(generator, n, dimension) for n in (3, 5, 8))
            r = WeightedSet(r.positions / 4 + p.positions[0], r.log_weights)  # r near p
            assert discrepancy(p, q) <= discrepancy(p, r) + discrepancy(r, q) + 1e-12
            assert discrepancy(p, q) == pytest.approx(discrepancy(q, p), rel=1e-12)


def test_the_squares_do_not_obey_the_triangle_inequality():
    # Three points on a line: 2h, 2h and 4h for energy; for the Gaussian kernel about h^2 each way.
    a, b, c = point(0.0), point(0.5), point(1.0)
    assert root_mmd(a, c) ** 2 > root_mmd(a, b) ** 2 + root_mmd(b, c) ** 2
    p, q = WeightedSet(torch.tensor([[0.0], [1.0]]), torch.zeros(2)), point(0.0)
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


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_energy_and_mmd_agree_with_plain_double_sums(dimension):
    generator = torch.Generator().manual_seed(3)
    p, q = random_set(generator, 5, dimension), random_set(generator, 3, dimension)
    between, in_p, in_q = double_sums(p, q, lambda x, y: (x - y).norm())
    assert root_energy_distance(p, q) ** 2 == pytest.approx(2 * between - in_p - in_q, rel=1e-10)
    between, in_p, in_q = double_sums(
        p, q, lambda x, y: torch.exp(-(x - y).square().sum() / (2 * 0.6**2))
    )
    squared = root_mmd(p, q, gaussian_kernel(0.6)) ** 2
    assert squared == pytest.approx(in_p + in_q - 2 * between, rel=1e-10)


def test_two_points_have_closed_forms():
    a, b = point(0.0, 0.0), point(3.0, 4.0)
    assert root_energy_distance(a, b) == pytest.approx(math.sqrt(2 * 5.0))
    assert root_mmd(a, b, gaussian_kernel(5.0)) == pytest.approx(math.sqrt(2 - 2 * math.exp(-0.5)))
    assert laplace_mmd(a, b) == pytest.approx(math.sqrt(2 - 2 * math.exp(-5 / 0.7)))
    assert wasserstein_1(point(-1.0), point(2.5)) == pytest.approx(3.5)
    assert root_energy_distance(point(-1.0), point(2.5)) == pytest.approx(math.sqrt(7.0))


def test_a_small_move_counts_linearly_except_in_the_root_energy_distance():
    near, far = point(1e-4), point(2e-4)
    for discrepancy, factor in (
        (wasserstein_1, 2.0),
        (root_mmd, 2.0),
        (root_energy_distance, math.sqrt(2)),
    ):
        ratio = discrepancy(point(0.0), far) / discrepancy(point(0.0), near)
        assert ratio == pytest.approx(factor, rel=1e-4)


def test_a_particle_of_weight_zero_does_not_count():
    p = WeightedSet(torch.tensor([[0.0], [9.0]]), torch.tensor([0.0, -torch.inf]))
    assert wasserstein_1(p, point(0.0)) == root_energy_distance(p, point(0.0)) == 0.0


def test_a_grid_density_is_a_weighted_set_and_bayes_gives_the_conjugate_posterior():
    nodes = grid(-9.0, 9.0, 4001)
    prior = GridMixture(nodes, 1.0)(point(0.0))
    posterior = bayes_update(prior, lambda x: (x[:, 0] - 2.0) ** 2 / 2)
    exact = GridMixture(nodes, 0.5)(point(1.0))  # N(0, 1) times N(2, 1) is N(1, 1/2)
    assert wasserstein_1(posterior, exact) < 1e-12
    # Between N(0, 1) and N(1, 1) the distance is 1: the grid's sum of a smooth density is exact.
    assert wasserstein_1(prior, GridMixture(nodes, 1.0)(point(1.0))) == pytest.approx(1, rel=1e-9)
    assert grid(0.0, 1.0, 3, 2).tolist()[:4] == [[0, 0], [0, 0.5], [0, 1], [0.5, 0]]


def test_bad_sets_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="same dimension, got 1 and 2"):
        root_mmd(point(0.0), point(0.0, 0.0))
    with pytest.raises(ValueError, match="one dimension only, got 2"):
        wasserstein_1(point(0.0, 0.0), point(0.0, 1.0))
    with pytest.raises(ValueError, match=r"\(3,\) and \(3,\)"):
        root_mmd(WeightedSet(torch.zeros(3), torch.zeros(3)), point(0.0))
    with pytest.raises(ValueError, match="positions of a weighted set must be finite"):
        root_mmd(point(math.nan), point(0.0))
    with pytest.raises(ValueError, match="at least one above -infinity"):
        root_mmd(WeightedSet(torch.zeros(1, 1), torch.tensor([-torch.inf])), point(0.0))
    with pytest.raises(ValueError, match="kernel must return"):
        root_mmd(point(0.0), point(1.0), lambda x, y: x[:, 0] * y[:, 0])
    with pytest.raises(ValueError, match="length_scale must be positive, got 0"):
        gaussian_kernel(0)
    with pytest.raises(ValueError, match="sigma2 must be positive"):
        GridMixture(grid(0.0, 1.0, 2), 0.0)
    with pytest.raises(ValueError, match="low < high"):
        grid(1.0, 0.0, 5)
