"""Variance parts and the permutation test, against plain loops and closed forms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orderless.audit import decompose
from orderless.metrics import order_p_value


def scores_of(seeds: int, orders: int, tasks: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((seeds, orders, tasks))


def test_the_parts_of_a_grid_worked_out_by_hand() -> None:
    """Mean 4; orders 2 and 6, seeds 1 and 7; what is left is 1 in each run."""
    parts = decompose(np.array([[[0.0], [2.0]], [[4.0], [10.0]]]))
    assert (parts.order_effect, parts.seed_effect, parts.interaction) == (4, 9, 1)
    assert (parts.order_variance, parts.seed_variance, parts.variance) == (5, 10, 14)


def test_all_relabellings_of_a_small_audit_are_counted() -> None:
    scores = scores_of(3, 3, 2, seed=4)

    def statistic(grid: np.ndarray) -> float:
        return float(grid.mean(axis=0).var(axis=0).mean())

    values = []
    for labels in itertools.product(itertools.permutations(range(3)), repeat=3):
        values.append(statistic(np.stack([scores[s, list(labels[s])] for s in range(3)])))
    share = np.mean([value >= statistic(scores) - 1e-12 for value in values])
    assert order_p_value(scores) == pytest.approx(share)


def test_the_drawn_test_approaches_the_exact_one() -> None:
    scores = scores_of(2, 6, 3, seed=1)  # 720 relabellings
    exact = order_p_value(scores, permutations=720)
    drawn = order_p_value(scores, permutations=719)
    assert 0.02 < exact < 0.98
    assert drawn == pytest.approx(exact, abs=0.08)  # four standard errors of 719 draws


def test_the_test_rejects_five_in_a_hundred_where_there_is_nothing() -> None:
    generator = np.random.default_rng(0)
    # a large effect of the seed, none of the order
    grids = generator.normal(size=(400, 3, 6, 2)) + 5 * generator.normal(size=(400, 3, 1, 2))
    rejected = sum(order_p_value(grid, permutations=99) <= 0.05 for grid in grids)
    assert 4 <= rejected <= 36  # 20 expected, standard deviation 4.4


def test_an_order_that_matters_with_every_seed_is_found() -> None:
    effect = np.random.default_rng(1).normal(size=(1, 10, 3))
    assert order_p_value(scores_of(3, 10, 3) + 3 * effect) == 1 / 10_000
