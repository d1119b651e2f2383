"""Order dependence of real filters: what the theory says must be seen."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lab.studies.theory import (
    HALVINGS,
    as_closures,
    linear_losses,
    logistic_losses,
    main,
    make_filter,
    measure_bootstrap,
    measure_halvings,
)
from torch import nn

import orderless as ol
from orderless_lab.theory import (
    measure_order_dependence,
    order_at_distance,
    root_energy_distance,
    wasserstein_1,
)

ROOT = Path(__file__).parents[3]
ORDERS = [order_at_distance(8, swaps, seed) for swaps in (1, 7, 28) for seed in range(3)]


def measure(kind, losses, orders=ORDERS, discrepancy=wasserstein_1, **options):
    return measure_order_dependence(
        lambda: make_filter(kind, **options), as_closures(losses), orders, discrepancy
    )


@pytest.mark.parametrize("kind", ["weighted", "averaging", "descent"])
def test_linear_losses_give_the_same_set_in_every_order(kind):
    measured = measure(kind, linear_losses())
    assert measured.swaps.tolist() == [1] * 3 + [7] * 3 + [28] * 3
    # Positions of order 1 and weights, summed in another order: a few units of 2e-16.
    assert measured.discrepancy.max() < 1e-14
    in_plane = measure(
        kind, linear_losses(dimension=2), discrepancy=root_energy_distance, dimension=2
    )
    # A root of rounding errors is the root of 1e-16.
    assert in_plane.discrepancy.max() < 1e-7


def test_logistic_losses_differ_more_the_more_swaps_there_are():
    orders = [order_at_distance(8, swaps, seed) for swaps in (1, 9, 28) for seed in range(6)]
    means = measure("weighted", logistic_losses(), orders).by_swaps()
    assert list(means) == [1, 9, 28]
    assert 1e-4 < means[1] < means[9] < means[28]
    assert measure("weighted", logistic_losses(), [list(range(8))]).discrepancy.tolist() == [0.0]


@pytest.mark.parametrize("kind", ["weighted", "descent"])
def test_the_gap_between_orders_falls_with_sigma_to_the_fourth(kind):
    gaps = measure_halvings(kind, [2.0**-8, 2.0**-9, 2.0**-10])
    # Halving sigma^2 divides by 4 up to a relative O(sigma^2), which halves too.
    factors = gaps[:-1] / gaps[1:]
    assert np.all(np.abs(factors - 4) < 0.1) and abs(factors[1] - 4) < 0.6 * abs(factors[0] - 4)


@pytest.mark.slow
def test_the_bootstrap_filters_gap_is_a_bias_under_noise_and_chance_without():
    """With process noise later data counts more, for any N; resampling alone averages out."""
    noisy, quiet = measure_bootstrap([32, 1024], [2.0**-4, 2.0**-30], seeds=3)
    assert noisy[1] > 0.7 * noisy[0] > 0.3
    assert quiet[1] < 0.6 * quiet[0]
    assert quiet[1] > 100 * measure_halvings("weighted", [2.0**-20])[0]


def test_it_works_with_networks_and_data():
    """Losses are closures over an ensemble: a small network on batches, ten parameters each."""
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(5, 2, generator=generator) for _ in range(4)]
    cross_entropy = ol.per_particle(nn.functional.cross_entropy)

    def make():
        particles = ol.Ensemble(
            lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)), 6, seed=1
        )
        return ol.WeightedParticleFilter(particles, torch.optim.Adam(particles.parameters(), 0.05))

    losses = [
        lambda particles, x=x: cross_entropy(particles(x), (x[:, 0] > 0).long()) for x in batches
    ]
    measured = measure_order_dependence(make, losses, [[0, 1, 3, 2], [3, 2, 1, 0]])
    assert measured.swaps.tolist() == [1, 6]
    assert (measured.discrepancy > 1e-4).all()


def test_filters_that_start_differently_are_refused():
    seeds = iter(range(9))
    with pytest.raises(ValueError, match="same particles in every call"):
        measure_order_dependence(
            lambda: make_filter("weighted", seed=next(seeds)), as_closures(linear_losses(2)), []
        )
    with pytest.raises(ValueError, match=r"0 \.\.\. 1 once each, got \[0, 0\]"):
        measure("weighted", linear_losses(2), [[0, 0]])


@pytest.mark.slow
def test_the_command_of_the_docs_writes_the_figure_and_the_tables(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    main(["--figure", str(tmp_path / "new" / "figure.png"), "--orders", "1"])
    assert (tmp_path / "new" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "| linear | points |" in capsys.readouterr().out  # the bounds, which the page describes
    page = (ROOT / "docs" / "theory.md").read_text()
    # The bootstrap filter's column is left out: resampling can turn a last digit into another
    # particle.
    quarters = HALVINGS[::2]
    gaps = [measure_halvings(kind, quarters) for kind in ("descent", "weighted")]
    for index, sigma2 in enumerate(quarters):
        (row,) = [line for line in page.splitlines() if line.startswith(f"| 1/{1 / sigma2:.0f} |")]
        cells = row.strip("| ").split(" | ")[2::2]
        expected = [gap[index] for gap in gaps]
        assert [float(cell) for cell in cells] == pytest.approx(expected, rel=0.01)
