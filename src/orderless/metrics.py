"""From scores to numbers: average, order and seed variance, forgetting, transfer, calibration.

All functions take and return numpy arrays and floats, for any learner. A score that is not finite
raises an error and is never skipped: means over different subsets cannot be compared.

- Many runs are ``S[seed, order, task]``. Variances are population variances (ddof = 0), taken per
  task and then averaged over tasks.
- One run is ``R[i, j]``, ``[T + 1, T]``: the score of task *identity* j after i tasks, row 0 before
  the first. ``order[k]`` is the identity of the task at place k, so ``pos(j) = order.index(j) + 1``
  is the row right after task j was learned.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Difference", "average", "backward_transfer", "difference_across", "disagreement", "ece",
    "forgetting", "forward_transfer", "interval", "just_learned", "mean_interval", "nll",
    "normalized_order_variance", "normalized_variance", "order_averages", "order_p_value",
    "order_variance", "paired_difference", "seed_variance", "variance", "worst_order",
]  # fmt: skip

Array = NDArray[np.float64]
Axes = tuple[int, ...]
SEEDS: Axes = (0,)  # axes of S[seed, order, task]
ORDERS: Axes = (1,)
RUNS: Axes = (0, 1)

# Student's 97.5% quantiles for 1, 2, ... degrees of freedom; above 20 the last is conservative.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
           2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip


class Difference(NamedTuple):
    """A difference between two learners and its paired 95% interval.

    >>> Difference(value=0.2, low=-0.1, high=0.5).low
    -0.1
    """

    value: float
    low: float
    high: float


def _score_grid(scores: ArrayLike) -> Array:
    grid = np.asarray(scores, dtype=np.float64)
    if grid.ndim != 3 or grid.size == 0:
        raise ValueError(f"scores must have shape [seed, order, task], got {list(grid.shape)}")
    if not np.isfinite(grid).all():
        raise ValueError(
            "scores hold values that are not finite; give a complete seeds x orders block"
        )
    return grid


def _paired_grids(scores_a: ArrayLike, scores_b: ArrayLike) -> tuple[Array, Array]:
    first, second = _score_grid(scores_a), _score_grid(scores_b)
    if first.shape != second.shape:
        raise ValueError(
            "a paired difference needs the same seeds, orders and tasks on both sides, got shapes "
            f"{list(first.shape)} and {list(second.shape)}"
        )
    return first, second


def average(scores: ArrayLike) -> float:
    """Mean of ``S[seed, order, task]`` over everything.

    >>> average([[[0.4, 0.5], [0.8, 0.5]]])  # one seed, two orders, two tasks
    0.55
    """
    grid, by_order = _score_grid(scores), order_averages(scores)
    # A sum of equal numbers is rounded: their mean must not lie outside their range.
    return float(grid.mean().clip(by_order.min(), by_order.max()))


def variance(scores: ArrayLike) -> float:
    """Variance over seeds and orders together: mean_j Var_{s,o} S[s, o, j].

    >>> round(variance([[[0.4], [0.8]], [[0.6], [0.6]]]), 6)  # two seeds, two orders, one task
    0.02
    """
    return _spread(scores, RUNS)


def order_variance(scores: ArrayLike) -> float:
    """Variance over orders at a fixed seed: mean_j mean_s Var_o S[s, o, j].

    >>> round(order_variance([[[0.4], [0.8]], [[0.6], [0.6]]]), 6)  # 0.04 and 0
    0.02
    """
    return _spread(scores, ORDERS)


def seed_variance(scores: ArrayLike) -> float:
    """Variance over seeds at a fixed order: mean_j mean_o Var_s S[s, o, j].

    >>> round(seed_variance([[[0.4], [0.8]], [[0.6], [0.6]]]), 6)  # 0.01 in both orders
    0.01
    """
    return _spread(scores, SEEDS)


def normalized_variance(scores: ArrayLike) -> float:
    """Variance over squared mean: mean_j Var_{s,o} S[s, o, j] / (mean_{s,o} S[s, o, j])^2.

    NaN when a task's mean is 0. Meaningless for scores that can be negative (returns).

    >>> round(normalized_variance([[[0.4], [0.8]], [[0.6], [0.6]]]), 6)  # 0.02 / 0.6^2
    0.055556
    """
    return _normalized(scores, RUNS)


def normalized_order_variance(scores: ArrayLike) -> float:
    """Order variance over squared mean: mean_j mean_s Var_o S / (mean_{s,o} S[s, o, j])^2.

    >>> round(normalized_order_variance([[[0.4], [0.8]]]), 6)  # 0.04 / 0.6^2
    0.111111
    """
    return _normalized(scores, ORDERS)


def order_averages(scores: ArrayLike) -> Array:
    """[O]: mean of ``S[seed, order, task]`` over seeds and tasks, one number per order.

    >>> order_averages([[[0.5, 1.0], [0.25, 0.25]]])
    array([0.75, 0.25])
    """
    return _score_grid(scores).mean(axis=(0, 2))


def worst_order(scores: ArrayLike) -> float:
    """The lowest average of an order: min_o mean_{s,j} S[s, o, j].

    >>> worst_order([[[0.5, 1.0], [0.25, 0.25]]])
    0.25
    """
    return float(order_averages(scores).min())


def _spread(scores: ArrayLike, axes: Axes) -> float:
    return float((_deviations(scores, axes) ** 2).mean(axis=axes).mean())


def _normalized(scores: ArrayLike, axes: Axes) -> float:
    task_means = _score_grid(scores).mean(axis=RUNS)
    if (task_means == 0).any():
        return math.nan
    return float((_deviations(scores, axes) ** 2 / task_means**2).mean())


def _deviations(scores: ArrayLike, axes: Axes) -> Array:
    """Of every score from its mean over some axes; exactly 0 where all of them are equal."""
    grid = _score_grid(scores)
    first = tuple(slice(1) if axis in axes else slice(None) for axis in range(3))
    shifted = grid - grid[first]  # the mean of equal numbers other than 0 may be rounded
    return shifted - shifted.mean(axis=axes, keepdims=True)


def order_p_value(scores: ArrayLike, *, permutations: int = 9999, seed: int = 0) -> float:
    """p-value of "the order has no effect", by permuting orders within each seed.

    Null hypothesis: given the seed, the runs are exchangeable, whatever their orders. Then the
    labels of the orders can be shuffled within each seed, independently between seeds. Statistic:
    the variance of the orders' means over seeds, mean_j Var_o mean_s S[s, o, j], which is large if
    the *same* orders do well or badly with every seed. The scores of all tasks of one run stay
    together. Relabelling all seeds alike changes nothing, so the first seed is not relabelled:
    (O!)^(S-1) cases. All of them are enumerated if they are at most ``permutations``; else that
    many are drawn, and p = (1 + count) / (1 + permutations).

    >>> order_p_value([[[0.1], [0.2], [0.3]], [[0.1], [0.2], [0.3]]])  # one of 3! cases
    0.16666666666666666
    """
    centred = _deviations(scores, ORDERS)
    seeds, orders, _ = centred.shape
    cases = math.factorial(orders) ** (seeds - 1)
    relabellings: Iterable[Iterable[Sequence[int]]]
    if cases <= permutations:
        arrangements = itertools.permutations(range(orders))
        relabellings = itertools.product(arrangements, repeat=seeds - 1)
    else:
        labels = np.tile(np.arange(orders), (permutations, seeds - 1, 1))
        relabellings = np.random.default_rng(seed).permuted(labels, axis=2)
    observed = np.square(centred.sum(axis=0)).sum()
    # sums in another order may differ in their last bits, and equal statistics must count as equal
    least = observed - 1e-10 * np.square(centred).sum()
    count = 0
    for relabelling in relabellings:
        total = centred[0].copy()
        for of_seed, labels_of_seed in zip(centred[1:], relabelling, strict=True):
            total += of_seed[list(labels_of_seed)]
        count += int(np.square(total).sum() >= least)
    return count / cases if cases <= permutations else (1 + count) / (1 + permutations)


def interval(scores: ArrayLike) -> tuple[float, float]:
    """95% interval of the average for other orders and seeds, which are crossed random effects.

    The tasks are fixed. With one seed it holds for that seed; a single run has width 0.

    >>> low, high = interval([[[0.4], [0.5], [0.6]]])  # Student's, as there is one seed
    >>> round(low, 3), round(high, 3)
    (0.252, 0.748)
    """
    return _crossed_interval(_score_grid(scores).mean(axis=2))[1:]


def paired_difference(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    metric: Literal["mean", "order_variance", "variance"] = "mean",
) -> Difference:
    """metric(a) - metric(b) with a 95% interval for other orders and seeds, as in `interval`.

    Both are ``S[seed, order, task]`` over the *same* seeds and orders: an effect of an order or a
    seed on both cancels. A variance is the mean of squared deviations over runs, and its interval
    is that of a mean. It needs one or at least three orders (and seeds, for the total variance):
    two values lie equally far from their mean, which hides how uncertain their variance is.

    Simulated without a true difference, the interval leaves out 0 in this many % of cases: smallest
    and largest over effects of orders, of seeds and of both, normal and exponential, on five tasks.
    Bootstrap percentiles of a mean leave it out in up to 43%, where seeds differ more than orders;
    expanded ones of an order variance in up to 37%, where it depends on the seed.

        seeds x orders    1 x 5   1 x 10   2 x 5   2 x 10   3 x 10   8 x 10
        mean               6-8       6      0-7      0-9      0-7      2-7
        order variance     5-8       6      0-6      0-8      0-6      1-6
        total variance      7       4-6      -        -       0-8      1-7

    >>> ours = [[[0.75], [0.5], [1.0]]]
    >>> theirs = [[[0.5], [0.25], [0.75]]]  # always a quarter less: the orders' effects cancel
    >>> paired_difference(ours, theirs)
    Difference(value=0.25, low=0.25, high=0.25)
    """
    first, second = _paired_grids(scores_a, scores_b)
    if metric == "mean":
        return _crossed_interval((first - second).mean(axis=2))
    if metric not in ("order_variance", "variance"):
        raise ValueError(f"metric must be mean, order_variance or variance, got {metric!r}")
    axes = ORDERS if metric == "order_variance" else RUNS
    if any(first.shape[axis] == 2 for axis in axes):
        raise ValueError("a variance over two orders or seeds has no interval")
    squares = (_deviations(grid, axes) ** 2 for grid in (first, second))
    return _crossed_interval(np.subtract(*squares).mean(axis=2))


def mean_interval(values: ArrayLike) -> Difference:
    """The mean of independent values ``[K]``, K > 1, with Student's 95% interval.

    >>> round(mean_interval([1.0, 2.0, 3.0]).high, 2)
    4.48
    """
    return _crossed_interval(np.asarray(values, dtype=np.float64)[None])


def difference_across(scores_a: ArrayLike, scores_b: ArrayLike) -> Difference:
    """mean(a) - mean(b) with a 95% interval for *other tasks* in other orders.

    Tasks and orders are crossed random effects. Both are ``S[seed, order, task]`` over the same
    seeds, orders and tasks, with at least two orders and two tasks.

    >>> ours = [[[0.75, 0.5], [1.0, 0.75]]]
    >>> difference_across(ours, [[[0.5, 0.25], [0.75, 0.5]]])
    Difference(value=0.25, low=0.25, high=0.25)
    """
    gaps = np.subtract(*_paired_grids(scores_a, scores_b)).mean(axis=0)
    orders, tasks = gaps.shape
    if min(orders, tasks) < 2:
        raise ValueError(f"at least two orders and two tasks are needed, got {orders} and {tasks}")
    return _crossed_interval(gaps)


def _crossed_interval(values: Array) -> Difference:
    """The mean of ``x[a, b]`` with Student's 95% interval; a and b are crossed random effects.

        V_a = Var_a(mean_b x) / A,   V_b = Var_b(mean_a x) / B
        Var(mean) = max(V_a + V_b - V_rest, V_a, V_b)

    where V_rest is the residual variance, which is part of both. The degrees of freedom are
    Satterthwaite's. Along an axis of length 1 nothing varies: then it is Student's interval along
    the other.
    """
    start = float(values[0, 0])
    shifted = values - start  # equal values have an interval of width exactly 0
    by_row, by_column, mean = shifted.mean(axis=1), shifted.mean(axis=0), float(shifted.mean())
    freedom = np.maximum(np.array(values.shape) - 1, 1)
    parts = np.array([by_row.var(), by_column.var()]) / freedom
    rest = (shifted - by_row[:, None] - by_column + mean).var() / freedom.prod()
    variance = max(parts.sum() - rest, *parts)
    if variance == 0:
        return Difference(start, start, start)
    degrees = variance**2 / ((parts**2 / freedom).sum() + rest**2 / freedom.prod())
    degrees = max(degrees, min(length - 1 for length in values.shape if length > 1))
    quantile = STUDENT[min(int(degrees + 1e-9), len(STUDENT)) - 1]  # 9 may be rounded to 8.9999...
    half = float(quantile * variance**0.5)
    return Difference(start + mean, start + mean - half, start + mean + half)


# One run


def _score_matrix(matrix: ArrayLike) -> Array:
    rows = np.asarray(matrix, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] < 1 or rows.shape[0] != rows.shape[1] + 1:
        raise ValueError(f"R must have shape [T + 1, T], got {list(rows.shape)}")
    if not np.isfinite(rows).all():
        raise ValueError("R holds values that are not finite")
    return rows


def _in_order(matrix: ArrayLike, order: Sequence[int]) -> Array:
    """R with its columns in the order of learning: the task of column k is learned in row k + 1."""
    rows, identities = _score_matrix(matrix), [int(task) for task in order]
    tasks = rows.shape[1]
    if sorted(identities) != list(range(tasks)):
        raise ValueError(f"order must hold each of 0..{tasks - 1} once, got {identities}")
    return rows[:, identities]


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else float("nan")


def backward_transfer(matrix: ArrayLike, order: Sequence[int]) -> float:
    """BWT = mean over tasks j not last of R[T, j] - R[pos(j), j]; NaN with one task.

    >>> backward_transfer([[0.5, 0.5], [1.0, 0.5], [0.75, 1.0]], order=(0, 1))
    -0.25
    """
    rows = _in_order(matrix, order)
    return _mean((rows[-1] - rows[1:].diagonal())[:-1])


def forward_transfer(matrix: ArrayLike, order: Sequence[int]) -> float:
    """FWT = mean over tasks j not first of R[pos(j) - 1, j] - R[0, j]; NaN with one task.

    >>> forward_transfer([[0.5, 0.5], [1.0, 0.75], [0.75, 1.0]], order=(0, 1))
    0.25
    """
    rows = _in_order(matrix, order)
    return _mean((rows.diagonal() - rows[0])[1:])


def just_learned(matrix: ArrayLike, order: Sequence[int]) -> float:
    """mean_j R[pos(j), j]: the score on each task right after it was learned.

    >>> just_learned([[0.5, 0.5], [0.75, 0.5], [0.5, 1.0]], order=(0, 1))
    0.875
    """
    return _mean(_in_order(matrix, order)[1:].diagonal())


def forgetting(matrix: ArrayLike, order: Sequence[int]) -> float:
    """mean over tasks j not last of max_{i<T} R[i, j] - R[T, j]; NaN with one task.

    The last task cannot have been forgotten yet: counting it would mix in how much it was just
    learned.

    >>> forgetting([[0.5, 0.5], [1.0, 0.5], [0.75, 1.0]], order=(0, 1))
    0.25
    """
    rows = _in_order(matrix, order)
    return _mean((rows[:-1].max(axis=0) - rows[-1])[:-1])


# Predictions


def _predictions(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    probs, given = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    targets = given.astype(np.int64)
    if probs.ndim != 2 or targets.shape != probs.shape[:1] or not len(targets):
        raise ValueError(
            "probabilities must have shape [B, C] and labels [B], got "
            f"{list(probs.shape)} and {list(targets.shape)}"
        )
    if (targets != given).any() or targets.min() < 0 or targets.max() >= probs.shape[1]:
        raise ValueError(f"labels must be integers from 0 to {probs.shape[1] - 1}")
    return probs, targets


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """-mean_b log p[b, y_b], with probabilities ``[B, C]`` and labels ``[B]``, in nats.

    A probability of 0 counts as the smallest normal double: one sure mistake must not make the mean
    infinite.

    >>> round(nll([[0.5, 0.5], [1.0, 0.0]], [0, 0]), 3)  # (log 2 + 0) / 2
    0.347
    """
    probs, targets = _predictions(probabilities, labels)
    chosen = probs[np.arange(len(targets)), targets]
    return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())


def ece(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> float:
    """Expected calibration error over bins (lo, hi] of equal width.

    sum_m |B_m|/B * |accuracy(B_m) - confidence(B_m)|.

    >>> ece([[0.75, 0.25], [0.75, 0.25]], [0, 1])  # three quarters sure, half of them right
    0.25
    """
    probs, targets = _predictions(probabilities, labels)
    confidence = probs.max(axis=1)
    correct = probs.argmax(axis=1) == targets
    places = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(places, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(targets))


def disagreement(predictions: ArrayLike) -> float:
    """Share of samples on which two orders predict different labels, averaged over all pairs.

    ``predictions`` are integer labels ``[O, B]``; NaN with fewer than two orders.

    >>> disagreement([[0, 1, 1, 0], [0, 1, 1, 1]])
    0.25
    """
    labels = np.asarray(predictions)
    if labels.ndim != 2 or labels.shape[1] == 0:
        raise ValueError(f"predictions must have shape [order, sample], got {list(labels.shape)}")
    orders = labels.shape[0]
    if orders < 2:
        return float("nan")
    # Counting votes per label costs O(O C B) instead of the O(O^2 B) of comparing all pairs.
    votes = np.stack([(labels == label).sum(axis=0) for label in np.unique(labels)])
    agreeing = (votes * (votes - 1)).sum(axis=0)
    return float(1 - agreeing.mean() / (orders * (orders - 1)))
