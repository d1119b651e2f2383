"""From score matrices to numbers: average, order and seed variance, forgetting, transfer,
calibration, plasticity.

Everything here takes and returns plain numpy arrays and floats, so it serves any learner. Two
shapes recur:

- ``S[seed, order, task]``: the final score of each task (a fraction), for every seed and every
  order of the tasks.
- ``R[i, j]``: the score of task *identity* j after i tasks (row 0 = untrained), shape ``[T + 1,
  T]``; ``order[k]`` is the identity of the task at place k, so ``pos(j) = order.index(j) + 1`` is
  the row right after task j was learned.

Variances are population variances (ddof = 0), taken per task and then averaged over tasks. A score
that is not finite is an error, never skipped: a mean over whatever happens to be there compares
different things.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


# Student's 97.5 % quantiles for 1, 2, ... degrees of freedom; for more than 20 the last is wide.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
           2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip


class Difference(NamedTuple):
    """A difference between two learners and its paired 95 % interval."""

    value: float
    low: float
    high: float


# --- scores over seeds and orders ---------------------------------------------------------------


def _score_grid(scores: ArrayLike) -> Array:
    grid = np.asarray(scores, dtype=np.float64)
    if grid.ndim != 3 or grid.size == 0:
        raise ValueError(f"scores must have shape [seed, order, task], got {list(grid.shape)}")
    if not np.isfinite(grid).all():
        raise ValueError(
            "scores hold values that are not finite; give a complete seeds x orders block"
        )
    return grid


def average(scores: ArrayLike) -> float:
    """Mean of ``S[seed, order, task]`` over everything."""
    by_order = order_averages(scores)
    # a sum of equal numbers is rounded: their mean must not lie beyond them
    return float(by_order.mean().clip(by_order.min(), by_order.max()))


def _task_variance(grid: Array) -> Array:
    """[T]: variance of each task over all seeds and orders together."""
    # Measured from one of the values, equal scores have a variance of exactly 0 and not of 1e-34.
    return (grid - grid[:1, :1]).var(axis=(0, 1))


def _task_order_variance(grid: Array) -> Array:
    """[T]: mean over seeds of each task's variance over orders."""
    return (grid - grid[:, :1]).var(axis=1).mean(axis=0)


def variance(scores: ArrayLike) -> float:
    """Var over seeds and orders together: mean_j Var_{s,o} S[s, o, j]."""
    return float(_task_variance(_score_grid(scores)).mean())


def order_variance(scores: ArrayLike) -> float:
    """How much the order alone matters: mean_j mean_s Var_o S[s, o, j]."""
    return float(_task_order_variance(_score_grid(scores)).mean())


def seed_variance(scores: ArrayLike) -> float:
    """How much the seed alone matters: mean_j mean_o Var_s S[s, o, j]."""
    grid = _score_grid(scores)
    return float((grid - grid[:1]).var(axis=0).mean())


def _normalized(task_variances: Array, grid: Array) -> float:
    squared_means = grid.mean(axis=(0, 1)) ** 2
    if (squared_means == 0).any():
        return float("nan")
    return float((task_variances / squared_means).mean())


def normalized_variance(scores: ArrayLike) -> float:
    """Variance over squared mean, per task: mean_j Var_{s,o} S[s, o, j] / (mean_{s,o} S[s, o,
    j])^2.

    NaN when a task's mean is 0. Meaningless for scores that can be negative (returns).
    """
    grid = _score_grid(scores)
    return _normalized(_task_variance(grid), grid)


def normalized_order_variance(scores: ArrayLike) -> float:
    """Order variance over squared mean, per task: mean_j mean_s Var_o S[s, o, j] / (mean_{s,o}
    S[s, o, j])^2.
    """
    grid = _score_grid(scores)
    return _normalized(_task_order_variance(grid), grid)


def order_averages(scores: ArrayLike) -> Array:
    """[O]: mean of ``S[seed, order, task]`` over seeds and tasks, one number per order."""
    return _score_grid(scores).mean(axis=(0, 2))


def worst_order(scores: ArrayLike) -> float:
    """The average of the order that does worst: min_o mean_{s,j} S[s, o, j]."""
    return float(order_averages(scores).min())


def order_contributions(scores: ArrayLike, *, within_seed: bool = False) -> Array:
    """[O]: each order's share of the normalized variance; the mean over orders *is* the normalized
    variance.

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
    """([resamples, S], [resamples, O]): how often, as a share, each seed and each order is drawn
    when S seeds and O orders are drawn with replacement.
    """
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
    """Percentile bootstrap interval of the average, drawing orders *and* seeds with replacement
    (tasks stay). With one seed it is an interval given that seed.
    """
    grid = _score_grid(scores)
    shares = _resampled_shares(grid, resamples, seed)
    # Centred first, so that equal runs give an interval of exactly no width.
    start = float(grid[0, 0].mean())
    low, high = _percentiles(_resampled_statistic(grid - grid[0, 0], shares, "mean"), level)
    return start + low, start + high


def _resampled_statistic(grid: Array, shares: tuple[Array, Array], metric: str) -> Array:
    """[resamples]: the metric with seeds and orders counted as ``shares`` says, by first and second
    moments.
    """
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

    Both are ``S[seed, order, task]`` over the *same* seeds and orders; each resample draws the
    same for both, so what an order or a seed does to both of them cancels. With one seed the
    interval is one given that seed. A resampled variance is (O - 1)/O of the true one on average:
    the interval is drawn towards 0 by that factor, which never changes its sign.
    """
    first, second = _score_grid(scores_a), _score_grid(scores_b)
    if first.shape != second.shape:
        raise ValueError(
            "a paired difference needs the same seeds, orders and tasks on both sides, got shapes "
            f"{list(first.shape)} and {list(second.shape)}"
        )
    statistics = {"mean": average, "order_variance": order_variance, "variance": variance}
    if metric not in statistics:
        raise ValueError(f"metric must be one of {', '.join(statistics)}, got {metric!r}")
    shares = _resampled_shares(first, resamples, seed)
    differences = _resampled_statistic(first, shares, metric) - _resampled_statistic(
        second, shares, metric
    )
    value = statistics[metric](first) - statistics[metric](second)
    return Difference(value, *_percentiles(differences, level))


def mean_interval(values: ArrayLike) -> Difference:
    """The mean of independent values ``[K]``, K > 1, with Student's 95 % interval."""
    sample = np.asarray(values, dtype=np.float64)
    half = _quantile(len(sample) - 1) * sample.std(ddof=1) / len(sample) ** 0.5
    return Difference(
        float(sample.mean()), float(sample.mean() - half), float(sample.mean() + half)
    )


def _quantile(freedom: float) -> float:
    return STUDENT[min(int(freedom), len(STUDENT)) - 1]


def difference_across(scores_a: ArrayLike, scores_b: ArrayLike) -> Difference:
    """mean(a) - mean(b) as it would be on *other tasks* in other orders, with its 95 % interval.

    Tasks and orders are crossed random effects: with d[o, j] the differences (means over seeds),

        V_task = Var_j(mean_o d) / T,   V_order = Var_o(mean_j d) / O
        Var(mean) = max(V_task + V_order - V_rest, V_task, V_order)

    where V_rest, that of what neither explains, is part of both.
    Student's interval with Satterthwaite's degrees of freedom. Both are ``S[seed, order, task]``
    with at least two orders and two tasks.
    """
    gaps = (_score_grid(scores_a) - _score_grid(scores_b)).mean(axis=0)
    orders, tasks = gaps.shape
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


# --- one run: R[i, j] ---------------------------------------------------------------------------


def _score_matrix(matrix: ArrayLike) -> Array:
    rows = np.asarray(matrix, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] < 1 or rows.shape[0] != rows.shape[1] + 1:
        raise ValueError(f"R must have shape [T + 1, T], got {list(rows.shape)}")
    if not np.isfinite(rows).all():
        raise ValueError("R holds values that are not finite")
    return rows


def _task_order(order: Sequence[int], tasks: int) -> list[int]:
    identities = [int(task) for task in order]
    if sorted(identities) != list(range(tasks)):
        raise ValueError(f"order must hold each of 0..{tasks - 1} once, got {identities}")
    return identities


def final_average(matrix: ArrayLike) -> float:
    """mean_j R[T, j]."""
    return float(_score_matrix(matrix)[-1].mean())


def backward_transfer(matrix: ArrayLike, order: Sequence[int]) -> float:
    """BWT = mean over tasks j not last of R[T, j] - R[pos(j), j]; NaN with one task."""
    rows = _score_matrix(matrix)
    identities = _task_order(order, rows.shape[1])
    gains = [rows[-1, j] - rows[place, j] for place, j in enumerate(identities[:-1], start=1)]
    return float(np.mean(gains)) if gains else float("nan")


def forward_transfer(matrix: ArrayLike, order: Sequence[int]) -> float:
    """FWT = mean over tasks j not first of R[pos(j) - 1, j] - R[0, j]; NaN with one task."""
    rows = _score_matrix(matrix)
    identities = _task_order(order, rows.shape[1])
    gains = [rows[seen, j] - rows[0, j] for seen, j in enumerate(identities[1:], start=1)]
    return float(np.mean(gains)) if gains else float("nan")


def just_learned(matrix: ArrayLike, order: Sequence[int]) -> float:
    """mean_j R[pos(j), j]: the score on each task right after it was learned."""
    rows = _score_matrix(matrix)
    identities = _task_order(order, rows.shape[1])
    return float(np.mean([rows[place, j] for place, j in enumerate(identities, start=1)]))


def forgetting(matrix: ArrayLike, order: Sequence[int]) -> float:
    """mean over tasks j not last of max_{i<T} R[i, j] - R[T, j]; NaN with one task.

    The last task cannot have been forgotten yet: counting it would mix in how much it was just
    learned.
    """
    rows = _score_matrix(matrix)
    earlier = _task_order(order, rows.shape[1])[:-1]
    if not earlier:
        return float("nan")
    return float((rows[:-1].max(axis=0) - rows[-1])[earlier].mean())


def first_minus_last(matrix: ArrayLike, order: Sequence[int]) -> float:
    """mean over tasks j not last of R[pos(j), j] - R[T, j] = -BWT: loss since a task was learned,
    not since its best.
    """
    return -backward_transfer(matrix, order)


# --- calibration and agreement ------------------------------------------------------------------


def _predictions(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    probs = np.asarray(probabilities, dtype=np.float64)
    targets = np.asarray(labels).astype(np.int64)
    if probs.ndim != 2 or targets.shape != probs.shape[:1] or not len(targets):
        raise ValueError(
            "probabilities must have shape [B, C] and labels [B], got "
            f"{list(probs.shape)} and {list(targets.shape)}"
        )
    return probs, targets


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """-mean_b log p[b, y_b], with probabilities ``[B, C]`` and labels ``[B]``, in nats.

    A probability of 0 counts as the smallest normal double, so that one sure mistake does not hide
    all else.
    """
    probs, targets = _predictions(probabilities, labels)
    chosen = probs[np.arange(len(targets)), targets]
    return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())


def ece(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> float:
    """Expected calibration error: sum_m |B_m|/B * |accuracy(B_m) - confidence(B_m)| over equal-
    width bins (lo, hi].
    """
    probs, targets = _predictions(probabilities, labels)
    confidence = probs.max(axis=1)
    correct = probs.argmax(axis=1) == targets
    places = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(places, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(targets))


def disagreement(predictions: ArrayLike) -> float:
    """Share of samples on which two orders predict different labels, averaged over all pairs of
    orders.

    ``predictions``: integer labels ``[O, B]``; NaN with fewer than two orders.
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


# --- plasticity ---------------------------------------------------------------------------------


def dormant_share(activations: ArrayLike, *, threshold: float = 0.01) -> float:
    """Share of units that are active (> 0) on fewer than ``threshold`` of the samples; activations
    ``[B, units]``.
    """
    values = np.asarray(activations)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"activations must have shape [B, units], got {list(values.shape)}")
    return float(((values > 0).mean(axis=0) < threshold).mean())


def effective_rank(features: ArrayLike) -> float:
    """exp(-sum_k p_k log p_k) with p_k = s_k / sum s, the normalised singular values of features
    ``[B, D]``; 0 if all are 0.
    """
    import torch

    values = np.array(features, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"features must have shape [B, D], got {list(values.shape)}")
    wide = values.shape[0] < values.shape[1]
    # their squares are eigenvalues of the smaller Gram matrix: several times faster. By torch,
    # whose threads a cell fixes; numpy has as many as there are cores, and other last digits.
    rows = torch.from_numpy(values)
    squares = torch.linalg.eigvalsh(rows @ rows.T if wide else rows.T @ rows).numpy()
    rounding = squares.max() * len(squares) * np.finfo(np.float64).eps
    singular = np.sqrt(squares[squares > max(rounding, 0.0)])
    if not singular.any():
        return 0.0
    shares = singular / singular.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def mean_abs_weight(weights: Iterable[ArrayLike]) -> float:
    """mean |w| over all entries of all tensors."""
    tensors = [np.abs(np.asarray(tensor, dtype=np.float64)) for tensor in weights]
    count = sum(tensor.size for tensor in tensors)
    if not count:
        raise ValueError("weights hold no numbers")
    return float(sum(tensor.sum() for tensor in tensors) / count)


def area_under_curve(values: ArrayLike, steps: ArrayLike | None = None) -> float:
    """Trapezoid area under a learning curve ``[K]`` divided by its length in steps: a mean height,
    in the curve's unit.
    """
    heights = np.asarray(values, dtype=np.float64)
    places = np.arange(len(heights)) if steps is None else np.asarray(steps, dtype=np.float64)
    if heights.ndim != 1 or places.shape != heights.shape or not len(heights):
        raise ValueError(
            "values and steps must be two lists of one length, got "
            f"{list(heights.shape)} and {list(places.shape)}"
        )
    if len(heights) == 1:
        return float(heights[0])
    if (np.diff(places) <= 0).any():
        raise ValueError("steps must increase")
    return float(np.trapezoid(heights, places) / (places[-1] - places[0]))
