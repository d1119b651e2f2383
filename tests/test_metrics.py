"""The metrics against hand-computed arrays, plain loops, scipy and scikit-learn."""

import itertools

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import log_loss

from orderless import metrics

SEEDS, ORDERS, TASKS = 3, 7, 4


def random_scores(seed: int = 0, shape: tuple[int, ...] = (SEEDS, ORDERS, TASKS)) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.2, 1.0, shape)


# Two seeds, two orders, two tasks, worked out by hand:
# task 0: seed 0 -> 0.4, 0.8; seed 1 -> 0.6, 0.6. task 1 is 0.5 in all four runs.
BY_HAND = np.array([[[0.4, 0.5], [0.8, 0.5]], [[0.6, 0.5], [0.6, 0.5]]])


def test_variances_of_a_grid_worked_out_by_hand():
    # Task 0 has mean .6; over everything (.04 + .04 + 0 + 0) / 4 = .02, task 1 nothing.
    assert metrics.average(BY_HAND) == pytest.approx(0.55)
    assert metrics.variance(BY_HAND) == pytest.approx(0.02 / 2)
    # Over orders: seed 0 has .04, seed 1 has 0.
    assert metrics.order_variance(BY_HAND) == pytest.approx((0.04 + 0) / 2 / 2)
    # Over seeds: both orders have .01.
    assert metrics.seed_variance(BY_HAND) == pytest.approx(0.01 / 2)
    assert metrics.normalized_variance(BY_HAND) == pytest.approx(0.02 / 0.36 / 2)
    assert metrics.normalized_order_variance(BY_HAND) == pytest.approx(0.02 / 0.36 / 2)
    assert metrics.worst_order(BY_HAND) == pytest.approx(0.5)


def test_a_learner_that_ignores_the_order_has_order_variance_exactly_zero():
    # 0.1 three times has a floating-point mean that is not 0.1: a plain variance would be 2e-34.
    scores = np.broadcast_to(np.array([[[0.1, 0.7]], [[0.3, 0.9]]]), (2, 3, 2))
    assert np.var([0.1, 0.1, 0.1]) > 0
    assert metrics.order_variance(scores) == metrics.normalized_order_variance(scores) == 0.0
    assert metrics.paired_difference(scores, scores, "order_variance") == (0.0, 0.0, 0.0)
    low, high = metrics.interval(scores[:1])
    assert low == high


def test_the_average_of_orders_that_are_equal_is_theirs_to_the_bit():
    for seed in range(50):
        order = random_scores(seed, (1, 1, 5))
        scores = np.repeat(order, 3, axis=1)
        assert metrics.average(scores) == metrics.worst_order(scores)


def test_normalized_variance_is_undefined_when_a_task_is_never_right():
    scores = random_scores()
    scores[:, :, 1] = 0.0
    assert np.isnan(metrics.normalized_variance(scores))
    assert np.isnan(metrics.normalized_order_variance(scores))


def test_incomplete_grids_and_wrong_shapes_are_refused():
    scores = random_scores()
    scores[1, 2, 0] = np.nan
    with pytest.raises(ValueError, match="complete seeds x orders block"):
        metrics.order_variance(scores)
    with pytest.raises(ValueError, match=r"\[seed, order, task\], got \[7, 4\]"):
        metrics.average(random_scores(shape=(7, 4)))


def student(values: np.ndarray) -> tuple[float, float]:
    """Student's interval of the mean, by scipy."""
    return tuple(scipy.stats.ttest_1samp(values, 0).confidence_interval())


def crossed_by_mean_squares(values: np.ndarray) -> tuple[float, float]:
    """The mean of a two-way table with random effects, by the analysis of variance."""
    rows, columns = values.shape
    by_row = values.mean(axis=1) - values.mean()
    by_column = values.mean(axis=0) - values.mean()
    rest = values - values.mean() - by_row[:, None] - by_column
    freedom = np.array([rows - 1, columns - 1, (rows - 1) * (columns - 1)])
    sums = [columns * (by_row**2).sum(), rows * (by_column**2).sum(), (rest**2).sum()]
    squares = np.array(sums) / freedom
    total = squares[0] + squares[1] - squares[2]
    assert total > squares[:2].max()  # no effect is estimated as negative
    degrees = int(total**2 / (squares**2 / freedom).sum())
    half = scipy.stats.t.ppf(0.975, degrees) * (total / values.size) ** 0.5
    return values.mean() - half, values.mean() + half


def shifted_scores(seed: int, seeds: int = SEEDS, orders: int = ORDERS) -> np.ndarray:
    """Random scores with effects of the seed and of the order."""
    draw = np.random.default_rng(seed)
    by_seed, by_order = draw.uniform(size=(seeds, 1, TASKS)), draw.uniform(size=(1, orders, TASKS))
    return by_seed + by_order + 0.1 * draw.uniform(size=(seeds, orders, TASKS))


def test_with_one_seed_or_one_order_intervals_are_students():
    scores = random_scores(1)
    others = random_scores(2)
    by_order = scores[0].mean(axis=1)
    assert metrics.interval(scores[:1]) == pytest.approx(student(by_order), abs=1e-3)
    by_seed = scores[:, 0].mean(axis=1)
    assert metrics.interval(scores[:, :1]) == pytest.approx(student(by_seed), abs=1e-3)
    squares = [(x - x.mean(axis=0)) ** 2 for x in (scores[0], others[0])]
    expected = student((squares[0] - squares[1]).mean(axis=1))
    found = metrics.paired_difference(scores[:1], others[:1], "order_variance")
    assert found[1:] == pytest.approx(expected, abs=1e-4)


def test_over_seeds_and_orders_intervals_are_those_of_crossed_random_effects():
    first, second = shifted_scores(1), shifted_scores(2)
    expected = crossed_by_mean_squares(first.mean(axis=2))
    assert metrics.interval(first) == pytest.approx(expected, rel=1e-3)
    found = metrics.paired_difference(first, second)
    assert found.value == pytest.approx(first.mean() - second.mean())
    assert found[1:] == pytest.approx(
        crossed_by_mean_squares((first - second).mean(axis=2)), rel=1e-3
    )
    squares = [(x - x.mean(axis=(0, 1))) ** 2 for x in (first, second)]
    found = metrics.paired_difference(first, second, "variance")
    assert found.value == pytest.approx(metrics.variance(first) - metrics.variance(second))
    expected = crossed_by_mean_squares((squares[0] - squares[1]).mean(axis=2))
    assert found[1:] == pytest.approx(expected, rel=1e-3)


def test_pairing_removes_what_the_orders_do_to_both():
    # Orders shift both learners by up to .5, one learner is .01 better everywhere.
    base = random_scores(0, (2, 10, 3)) * 0.01 + np.linspace(0, 0.5, 10)[None, :, None]
    result = metrics.paired_difference(base + 0.01, base)
    assert result.value == pytest.approx(0.01)
    assert result.low == pytest.approx(0.01) and result.high == pytest.approx(0.01)
    low, high = metrics.interval(base)
    assert high - low > 0.1


def test_across_tasks_an_interval_is_that_of_crossed_effects_and_students_without_orders():
    by_task = np.random.default_rng(1).normal(size=8)
    scores = np.tile(by_task, (1, 3, 1))
    found = metrics.difference_across(scores, 0 * scores)
    assert found[1:] == pytest.approx(student(by_task), abs=1e-3)
    assert metrics.mean_interval(by_task)[1:] == pytest.approx(student(by_task), abs=1e-3)
    gaps = shifted_scores(1, seeds=ORDERS, orders=TASKS)[None, :, :, 0]
    found = metrics.difference_across(gaps, 0 * gaps)
    assert found[1:] == pytest.approx(crossed_by_mean_squares(gaps[0]), rel=1e-3)
    for freedom, quantile in enumerate(metrics.STUDENT, start=1):
        assert quantile == pytest.approx(scipy.stats.t.ppf(0.975, freedom), abs=5e-4)


@pytest.mark.parametrize("metric", ["mean", "order_variance", "variance"])
@pytest.mark.parametrize("seeds", [1, 3, 8])
def test_where_two_learners_are_alike_about_one_interval_in_twenty_says_otherwise(metric, seeds):
    """Effects of seeds, orders and both, each the largest in a third of the cases."""
    draw = np.random.default_rng(seeds)

    def scores(of_seed: float, of_order: float, rest: float) -> np.ndarray:
        of_seed *= seeds > 1  # with one seed, the interval holds for that seed
        sizes = {(seeds, 1): of_seed, (1, 10): of_order, (seeds, 10): rest}
        return sum(size * draw.normal(size=(*shape, TASKS)) for shape, size in sizes.items())

    missed = []
    for sizes in 200 * [(1, 0.3, 0.3), (0.3, 1, 0.3), (0.3, 0.3, 1)]:
        found = metrics.paired_difference(scores(*sizes), scores(*sizes), metric)
        missed.append(found.low > 0 or found.high < 0)
    assert np.mean(missed) < 0.05 + 0.025  # 2.8 standard errors of 600 cases


@pytest.mark.parametrize(
    ("compare", "words"),
    [
        (lambda a: metrics.paired_difference(a, a[:, :5]), "same seeds, orders and tasks"),
        (lambda a: metrics.paired_difference(a, a, "median"), "metric must be .* got 'median'"),
        # two values tell nothing about how their variance varies
        (lambda a: metrics.paired_difference(a[:, :2], a[:, :2], "order_variance"), "two orders"),
        (lambda a: metrics.paired_difference(a[:2], a[:2], "variance"), "two orders or seeds"),
        (lambda a: metrics.difference_across(a, a[:, :1]), "same seeds, orders and tasks"),
        (lambda a: metrics.difference_across(a[:, :1], a[:, :1]), "two tasks are needed, got 1"),
    ],
)
def test_differences_that_cannot_be_are_refused(compare, words):
    with pytest.raises(ValueError, match=words):
        compare(random_scores())


# Order 2, 0, 1: task 2 is learned first, task 1 last. Rows: untrained, after 2, after 0, after 1.
MATRIX = np.array([[0.5, 0.5, 0.4], [0.6, 0.3, 0.9], [0.8, 0.7, 0.95], [0.7, 1.0, 0.75]])
ORDER = [2, 0, 1]


def test_transfer_and_forgetting_worked_out_by_hand():
    # Task 2 was learned in row 1 (.9), task 0 in row 2 (.8).
    assert metrics.backward_transfer(MATRIX, ORDER) == pytest.approx(
        ((0.75 - 0.9) + (0.7 - 0.8)) / 2
    )
    # Before task 0 came row 1 (.6), before task 1 came row 2 (.7).
    assert metrics.forward_transfer(MATRIX, ORDER) == pytest.approx(((0.6 - 0.5) + (0.7 - 0.5)) / 2)
    # The best of task 2 was .95 in row 2, after its own training; the last task counts not.
    assert metrics.forgetting(MATRIX, ORDER) == pytest.approx(((0.95 - 0.75) + (0.8 - 0.7)) / 2)


def test_just_learned_is_the_diagonal():
    matrix = np.arange(12.0).reshape(4, 3)  # R[i, j] = 3 i + j
    assert metrics.just_learned(matrix, [2, 0, 1]) == pytest.approx(((3 + 2) + 6 + (9 + 1)) / 3)


def test_a_task_that_is_best_at_the_end_has_negative_forgetting():
    # Task 0 rises from .6 to .9 while task 1 is learned: the last row is not among the maxima.
    matrix = [[0.5, 0.5], [0.6, 0.5], [0.9, 1.0]]
    assert metrics.forgetting(matrix, [0, 1]) == pytest.approx(0.6 - 0.9)


def test_matrix_metrics_do_not_depend_on_the_names_of_the_tasks():
    names = [1, 2, 0]  # of the tasks 0, 1, 2
    renamed = MATRIX[:, np.argsort(names)]
    order = [names[task] for task in ORDER]
    for metric in (metrics.backward_transfer, metrics.forward_transfer, metrics.forgetting):
        assert metric(renamed, order) == pytest.approx(metric(MATRIX, ORDER))


def test_one_task_has_no_transfer():
    for metric in (metrics.backward_transfer, metrics.forward_transfer, metrics.forgetting):
        assert np.isnan(metric([[0.5], [0.9]], [0]))


def test_matrix_metrics_refuse_a_missing_row_and_a_wrong_order():
    with pytest.raises(ValueError, match=r"\[T \+ 1, T\]"):
        metrics.forgetting(MATRIX[1:], ORDER)
    with pytest.raises(ValueError, match="each of 0..2 once, got \\[0, 0, 1\\]"):
        metrics.backward_transfer(MATRIX, [0, 0, 1])


def test_nll_equals_scikit_learn_log_loss():
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(4), size=200)
    labels = generator.integers(0, 4, size=200)
    assert metrics.nll(probabilities, labels) == pytest.approx(
        log_loss(labels, probabilities, labels=range(4))
    )


def test_nll_of_a_sure_mistake_is_large_and_finite():
    assert 700 < metrics.nll([[0.0, 1.0]], [0]) < 710


@pytest.mark.parametrize("label", [-1, 2, 0.5])
@pytest.mark.parametrize("measure", [metrics.nll, metrics.ece])
def test_a_label_without_a_probability_is_refused(measure, label):
    with pytest.raises(ValueError, match="labels must be integers from 0 to 1"):
        measure([[0.9, 0.1]], [label])


def test_ece_equals_a_plain_loop_over_bins():
    probabilities = np.random.default_rng(1).dirichlet(np.ones(3), size=500)
    labels = np.arange(500) % 3
    sure = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    expected = 0.0
    for index in range(15):
        inside = (index / 15 < sure) & (sure <= (index + 1) / 15)
        expected += abs((right[inside] - sure[inside]).sum()) / 500
    assert metrics.ece(probabilities, labels) == pytest.approx(expected)


def test_ece_of_a_sure_and_always_right_learner_is_zero_and_of_an_always_wrong_one_is_one():
    sure = np.eye(3)[[0, 1, 2, 1]]
    assert metrics.ece(sure, [0, 1, 2, 1]) == pytest.approx(0.0)
    assert metrics.ece(sure, [1, 2, 0, 2]) == pytest.approx(1.0)


def test_disagreement_equals_comparing_all_pairs():
    predictions = np.random.default_rng(2).integers(0, 3, size=(6, 40))
    pairs = list(itertools.combinations(range(6), 2))
    expected = np.mean([np.mean(predictions[a] != predictions[b]) for a, b in pairs])
    assert metrics.disagreement(predictions) == pytest.approx(expected)
    assert metrics.disagreement(np.repeat(predictions[:1], 4, axis=0)) == 0.0
    assert np.isnan(metrics.disagreement(predictions[:1]))
