"""A search finds the worst and the best order that random orders miss."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tests.audit.test_runs import Counted
from tests.audit.toys import LastTask, make_sgd, toy_tasks

import orderless as ol
from orderless.audit.orders import draw_orders
from orderless.audit.search import kernel, search

ORDERS = list(itertools.permutations(range(6)))


def scores_of_all_orders(seed: int, lr: float, classes: int) -> dict[tuple[int, ...], float]:
    """Average accuracy after six tasks in each of the 720 orders: softmax regression by SGD.

    All orders at once, each with its own weights; the tasks' true directions differ, so that
    learning one undoes part of another.
    """
    inputs, size, steps, draw = 8, 60, 12, np.random.default_rng(seed)
    common = draw.normal(size=(inputs, classes))
    x = draw.normal(size=(6, size + 500, inputs))
    y = np.stack([(t @ (common + draw.normal(size=common.shape))).argmax(1) for t in x])
    batches = draw.integers(0, size, size=(6, steps, 10))
    w = np.repeat(0.1 * draw.normal(size=(1, inputs, classes)), len(ORDERS), axis=0)
    for task in np.array(ORDERS).T:
        for step in range(steps):
            rows = task[:, None], batches[task, step]
            odds = np.exp(x[rows] @ w)
            error = odds / odds.sum(-1, keepdims=True) - np.eye(classes)[y[rows]]
            w = w - lr / 10 * x[rows].swapaxes(1, 2) @ error
    right = [(x[t, size:] @ w).argmax(-1) == y[t, size:] for t in range(6)]
    return dict(zip(ORDERS, np.mean(right, axis=(0, 2)).tolist(), strict=True))


@pytest.mark.slow
def test_a_tenth_of_the_runs_finds_the_worst_of_720_orders_to_a_point() -> None:
    beaten = 0
    for (lr, classes), seed in itertools.product(
        [(0.1, 2), (0.3, 2), (1, 2), (1, 4), (3, 3)], [0, 1]
    ):
        truth = scores_of_all_orders(seed, lr, classes)
        known = {order: truth[order] for order in draw_orders(6, 10, seed)}
        found = search(truth.__getitem__, known, 62)
        assert len(found) == 72 and all(truth[order] == found[order] for order in found)
        assert min(found.values()) <= min(truth.values()) + 0.01
        assert max(found.values()) >= max(truth.values()) - 0.01
        others = draw_orders(6, 72, seed + 100)
        beaten += min(found.values()) < min(truth[order] for order in others)
    assert beaten >= 8  # of 10; 72 random orders contain the worst of 720 once in ten times


def test_the_kernel_is_what_its_formula_says() -> None:
    some = [tuple(np.random.default_rng(k).permutation(5).tolist()) for k in range(6)]
    for a, b in itertools.product(some, some):
        pairs = list(itertools.combinations(range(5), 2))
        signs = [[1 if o.index(i) < o.index(j) else -1 for i, j in pairs] for o in (a, b)]
        kendall = sum(p != q for p, q in zip(*signs, strict=True))
        product = sum(p * q for p, q in zip(*signs, strict=True)) / len(pairs)
        product += 0.25 * (a[0] == b[0]) + (a[-2] == b[-2]) + (a[-1] == b[-1])
        expected = (math.exp(-0.25 * kendall) + product / 3.25) / 2
        assert kernel([a], [b])[0, 0] == pytest.approx(expected)
    assert np.linalg.eigvalsh(kernel(some, some)).min() > 0


def test_more_tasks_than_can_be_enumerated_are_climbed() -> None:
    """Nine tasks; the score falls with the number of pairs in reverse order."""

    def score(order: tuple[int, ...]) -> float:
        return -sum(a > b for a, b in itertools.combinations(order, 2)) / 36

    known = {order: score(order) for order in draw_orders(9, 10, 0)}
    found = search(score, known, 40)
    assert len(found) == 50
    assert min(found.values()) < min(known.values()) - 0.1
    assert min(found.values()) == pytest.approx(-1.0, abs=0.03)  # 1 of 36 pairs


def test_where_there_are_few_orders_all_are_tried() -> None:
    known = {(0, 1, 2): 0.5}
    found = search(lambda order: float(order[0]), known, 100)
    assert sorted(found) == sorted(itertools.permutations(range(3)))


@pytest.mark.slow
def test_an_audit_reports_both_tails_beside_random_orders(tmp_path) -> None:
    options = {"seeds": 2, "search": 14, "name": "mine", "out": tmp_path}
    counted = Counted()
    result = ol.order_sensitivity(counted, toy_tasks(), orders=4, **options)
    tails, learner = result.tails, result.learner
    assert tails is not None and 12 <= tails.runs <= 14
    assert counted.made == 4 * 2 + 1 + tails.runs
    assert tails.random_worst == learner.scores[0].mean(axis=1).min()
    assert tails.worst.average <= tails.random_worst <= tails.random_best <= tails.best.average
    for tail in (tails.worst, tails.best):
        for seed, average in enumerate((tail.average, tail.again)):
            alone = make_sgd()(seed)
            for task in tail.order:
                alone.learn(toy_tasks()[task].x, toy_tasks()[task].y, task=task)
            right = [(alone.predict(t.x_test).argmax(1) == t.y_test) for t in toy_tasks()]
            assert average == pytest.approx(np.mean([r.double().mean() for r in right]))
    said = f"worst order that {tails.runs} more runs found: {tails.worst.name}"
    assert said in result.text() and "of 4 random orders" in result.text()
    assert result.as_dict()["search"]["worst"]["average"] == tails.worst.average
    again = Counted()
    assert ol.order_sensitivity(again, toy_tasks(), orders=4, **options).tails == tails
    assert again.made == 0  # every run was kept


def test_a_search_counts_the_runs_that_it_made() -> None:
    """Three tasks have six orders, all of which the audit has tried: nothing is left to search."""
    result = ol.order_sensitivity(LastTask, toy_tasks()[:3], seeds=2, search=12)
    assert result.tails is not None and result.tails.runs == 0
    assert "more runs found" not in result.text()
    result = ol.order_sensitivity(LastTask, toy_tasks()[:3], orders=4, seeds=2, search=12)
    assert result.tails is not None and 2 <= result.tails.runs <= 4


def test_a_search_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="search must be 0 or at least 12 runs, .* got 3"):
        ol.order_sensitivity(LastTask, toy_tasks(), search=3)


def test_a_search_goes_on_where_everything_around_the_worst_order_was_tried() -> None:
    """Eight tasks: too many to list all orders. The worst one and its 49 neighbours are known."""
    worst = tuple(range(8))
    known = {worst: 0.0}
    for place, other in itertools.product(range(8), range(8)):
        rest = [task for task in worst if task != place]
        rest.insert(other, place)
        known.setdefault(tuple(rest), 0.5)
    assert len(known) == 50
    found = search(lambda order: 0.6, known, budget=3)
    assert len(found) == 53 and found.items() >= known.items()
