"""Variance parts and the permutation test, against plain loops and closed forms."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest

from orderless import metrics
from orderless.audit import decompose, order_p_value


def scores_of(seeds: int, orders: int, tasks: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((seeds, orders, tasks))


def test_the_three_parts_are_those_of_a_plain_loop_and_add_up_to_the_variance() -> None:
    scores = scores_of(3, 4, 2)
    order, seed, rest = [], [], []
    for t in range(2):
        grand = statistics.fmean(scores[:, :, t].ravel())
        a = [statistics.fmean(scores[:, o, t]) - grand for o in range(4)]
        b = [statistics.fmean(scores[s, :, t]) - grand for s in range(3)]
        e = [scores[s, o, t] - grand - a[o] - b[s] for s in range(3) for o in range(4)]
        order.append(statistics.fmean(v * v for v in a))
        seed.append(statistics.fmean(v * v for v in b))
        rest.append(statistics.fmean(v * v for v in e))
    parts = decompose(scores)
    found = parts.order_effect, parts.seed_effect, parts.interaction
    assert found == pytest.approx([statistics.fmean(p) for p in (order, seed, rest)])
    assert sum(found) == pytest.approx(parts.variance)
    assert parts.order_variance == pytest.approx(parts.order_effect + parts.interaction)
    assert parts.seed_variance == pytest.approx(parts.seed_effect + parts.interaction)
    assert parts.task_order_variance.mean() == pytest.approx(metrics.order_variance(scores))


def test_equal_orders_have_an_order_variance_of_exactly_zero() -> None:
    scores = np.repeat(scores_of(3, 1, 5), 7, axis=1)
    parts = decompose(scores)
    assert parts.order_variance == parts.order_effect == parts.interaction == 0.0
    assert parts.p_value == 1.0


def test_without_any_effect_the_fair_variances_have_the_same_expectation() -> None:
    scores = np.random.default_rng(0).normal(size=(2, 10, 20_000))
    parts = decompose(scores, permutations=1)
    # 20,000 tasks stand for as many audits; the standard error is below 1 %
    assert parts.fair_order_variance == pytest.approx(1.0, rel=0.02)
    assert parts.fair_seed_variance == pytest.approx(1.0, rel=0.02)
    assert parts.seed_variance < 0.52  # the population variance of two seeds is half as large


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
