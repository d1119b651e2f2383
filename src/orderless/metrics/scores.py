"""Many runs, ``S[seed, order, task]``: averages, variances over orders and seeds, and intervals.

Variances are population variances (ddof = 0), taken per task and then averaged over tasks.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Student's 97.5 % quantiles for 1, 2, ... degrees of freedom; above 20 the last is conservative.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
           2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip


class Difference(NamedTuple):
    """A difference between two learners and its paired 95 % interval."""

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
    """Mean of ``S[seed, order, task]`` over everything."""
    grid, by_order = _score_grid(scores), order_averages(scores)
    # A sum of equal numbers is rounded: their mean must not lie outside their range.
    return float(grid.mean().clip(by_order.min(), by_order.max()))


def variance(scores: ArrayLike) -> float:
    """Variance over seeds and orders together: mean_j Var_{s,o} S[s, o, j]."""
    # Here and below, one of the values is subtracted first: the variance of equal scores is then
    # exactly 0 and not 1e-34.
    grid = _score_grid(scores)
    return float((grid - grid[:1, :1]).var(axis=(0, 1)).mean())


def order_variance(scores: ArrayLike) -> float:
    """Variance over orders at a fixed seed: mean_j mean_s Var_o S[s, o, j]."""
    grid = _score_grid(scores)
    return float((grid - grid[:, :1]).var(axis=1).mean())


def seed_variance(scores: ArrayLike) -> float:
    """Variance over seeds at a fixed order: mean_j mean_o Var_s S[s, o, j]."""
    grid = _score_grid(scores)
    return float((grid - grid[:1]).var(axis=0).mean())


def normalized_variance(scores: ArrayLike) -> float:
    """Variance over squared mean: mean_j Var_{s,o} S[s, o, j] / (mean_{s,o} S[s, o, j])^2.

    NaN when a task's mean is 0. Meaningless for scores that can be negative (returns).
    """
    return float(order_contributions(scores).mean())


def normalized_order_variance(scores: ArrayLike) -> float:
    """Order variance over squared mean: mean_j mean_s Var_o S / (mean_{s,o} S[s, o, j])^2."""
    return float(order_contributions(scores, within_seed=True).mean())


def order_averages(scores: ArrayLike) -> Array:
    """[O]: mean of ``S[seed, order, task]`` over seeds and tasks, one number per order."""
    return _score_grid(scores).mean(axis=(0, 2))


def worst_order(scores: ArrayLike) -> float:
    """The lowest average of an order: min_o mean_{s,j} S[s, o, j]."""
    return float(order_averages(scores).min())


def order_contributions(scores: ArrayLike, *, within_seed: bool = False) -> Array:
    """[O]: the contribution of each order to the normalized variance, which is their mean.

    c_o = mean_{s,j} (S[s, o, j] - m)^2 / (mean_{s,o} S[s, o, j])^2, with m the task's mean over
    seeds and orders, or over the orders of seed s alone when ``within_seed`` (then the mean is the
    normalized *order* variance).
    """
    grid = _score_grid(scores)
    task_means = grid.mean(axis=(0, 1))
    if (task_means == 0).any():
        return np.full(grid.shape[1], np.nan)
    shifted = grid - (grid[:, :1] if within_seed else grid[:1, :1])
    deviations = shifted - shifted.mean(axis=1 if within_seed else (0, 1), keepdims=True)
    return (deviations**2 / task_means**2).mean(axis=(0, 2))


def _resampled_shares(grid: Array, resamples: int, seed: int) -> tuple[Array, Array]:
    """([resamples, S], [resamples, O]): the share of draws of each seed and of each order."""
    generator = np.random.default_rng(seed)

    def drawn(count: int) -> Array:
        return generator.multinomial(count, np.full(count, 1 / count), size=resamples) / count

    of_orders = drawn(grid.shape[1])
    return drawn(grid.shape[0]), of_orders


def _percentiles(values: Array, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def interval(
    scores: ArrayLike, *, level: float = 0.95, resamples: int = 4000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the average; orders *and* seeds are resampled, not tasks.

    With one seed the interval is conditional on that seed.
    """
    grid = _score_grid(scores)
    shares = _resampled_shares(grid, resamples, seed)
    # Centred first, so that equal runs give an interval of width exactly 0.
    start = float(grid[0, 0].mean())
    low, high = _percentiles(_resampled_statistic(grid - grid[0, 0], shares, "mean"), level)
    return start + low, start + high


def _resampled_statistic(grid: Array, shares: tuple[Array, Array], metric: str) -> Array:
    """[resamples]: the metric with seeds and orders weighted by ``shares``, by moments."""
    of_seeds, of_orders = shares
    if metric == "mean":
        return ((of_seeds @ grid.mean(axis=2)) * of_orders).sum(axis=1)
    shifted = grid - (grid[:, :1] if metric == "order_variance" else grid[:1, :1])
    first = np.einsum("ro,soj->rsj", of_orders, shifted)
    second = np.einsum("ro,soj->rsj", of_orders, shifted**2)
    if metric == "order_variance":
        return (of_seeds * (second - first**2).mean(axis=2)).sum(axis=1)
    first, second = (np.einsum("rs,rsj->rj", of_seeds, moment) for moment in (first, second))
    return (second - first**2).mean(axis=1)


def paired_difference(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    metric: Literal["mean", "order_variance", "variance"] = "mean",
    *,
    level: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> Difference:
    """metric(a) - metric(b) with a paired percentile bootstrap interval over orders and seeds.

    Both are ``S[seed, order, task]`` over the *same* seeds and orders, and each resample draws the
    same ones for both: an effect of an order or a seed on both cancels. With one seed the interval
    is conditional on that seed.

    A resampled order variance is (O - 1)/O of that of the runs on average, which shrinks the
    interval towards 0 and never changes its sign. In a resampled total variance the effect of
    orders is (O - 1)/O and that of seeds (S - 1)/S of what it was: with few seeds a difference in
    the variance *between seeds* is seldom shown, and the interval need not hold the value itself.

    Percentile intervals of few values are too narrow. With one seed and no true difference of the
    means, a 95 % interval leaves out 0 in about 17 % of cases with 5 orders and 11 % with 10.
    """
    first, second = _paired_grids(scores_a, scores_b)
    statistics = {"mean": average, "order_variance": order_variance, "variance": variance}
    if metric not in statistics:
        raise ValueError(f"metric must be one of {', '.join(statistics)}, got {metric!r}")
    shares = _resampled_shares(first, resamples, seed)
    ours, theirs = (_resampled_statistic(grid, shares, metric) for grid in (first, second))
    value = statistics[metric](first) - statistics[metric](second)
    return Difference(value, *_percentiles(ours - theirs, level))


def mean_interval(values: ArrayLike) -> Difference:
    """The mean of independent values ``[K]``, K > 1, with Student's 95 % interval."""
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    half = float(_quantile(len(sample) - 1) * sample.std(ddof=1) / len(sample) ** 0.5)
    return Difference(mean, mean - half, mean + half)


def _quantile(freedom: float) -> float:
    return STUDENT[min(int(freedom), len(STUDENT)) - 1]


def difference_across(scores_a: ArrayLike, scores_b: ArrayLike) -> Difference:
    """mean(a) - mean(b) with a 95 % interval for *other tasks* in other orders.

    Tasks and orders are crossed random effects: with d[o, j] the differences (means over seeds),

        V_task = Var_j(mean_o d) / T,   V_order = Var_o(mean_j d) / O
        Var(mean) = max(V_task + V_order - V_rest, V_task, V_order)

    where V_rest is the residual variance, which is part of both. Student's interval with
    Satterthwaite's degrees of freedom. Both are ``S[seed, order, task]`` over the same seeds,
    orders and tasks, with at least two orders and two tasks.
    """
    gaps = np.subtract(*_paired_grids(scores_a, scores_b)).mean(axis=0)
    orders, tasks = gaps.shape
    if min(orders, tasks) < 2:
        raise ValueError(f"at least two orders and two tasks are needed, got {orders} and {tasks}")
    by_order, by_task, mean = gaps.mean(axis=1), gaps.mean(axis=0), float(gaps.mean())
    rest = ((gaps - by_order[:, None] - by_task + mean) ** 2).sum() / (orders * tasks)
    parts = np.array([by_task.var(ddof=1) / tasks, by_order.var(ddof=1) / orders])
    freedom = np.array([tasks - 1, orders - 1])
    rest /= freedom.prod()
    variance = max(parts.sum() - rest, *parts)
    if variance == 0:
        return Difference(mean, mean, mean)
    degrees = variance**2 / ((parts**2 / freedom).sum() + rest**2 / freedom.prod())
    half = float(_quantile(max(degrees, freedom.min())) * variance**0.5)
    return Difference(mean, mean - half, mean + half)
