r"""Decompose the variance of scores into order, seed and interaction, and test the order effect.

Scores are S[s, o, t]: seed s, order o, task t. Per task, with S seeds and O orders,

    S[s, o] = m + a_o + b_s + e_so        sum_o a_o = sum_s b_s = sum_o e_so = sum_s e_so = 0

    order_effect = mean_o a_o^2      seed_effect = mean_s b_s^2      interaction = mean_so e_so^2

and the total variance is exactly their sum. The two variances that the experiments report contain
the interaction as well, because a run has one order and one seed:

    order_variance = mean_s Var_o S[s, o] = order_effect + interaction
    seed_variance  = mean_o Var_s S[s, o] = seed_effect  + interaction

All are population variances, per task and then averaged over tasks. A population variance of k
values is (k - 1)/k of the true one on average, and seeds are few: to compare the two, each is
divided by that factor (`fair_order_variance`, `fair_seed_variance`). Without any effect of order or
seed, both then have the same expectation.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import metrics

Array = NDArray[np.float64]
PERMUTATIONS = 9999
LEVEL = 0.05  # of the permutation test


@dataclass(frozen=True)
class Decomposition:
    """The parts of the variance of S[seed, order, task]; `[T]` arrays are per task."""

    average: float
    variance: float
    order_variance: float
    seed_variance: float
    order_effect: float
    seed_effect: float
    interaction: float
    fair_order_variance: float
    fair_seed_variance: float
    task_order_variance: Array
    task_seed_variance: Array
    p_value: float
    smallest_p_value: float


def decompose(scores: Array, *, permutations: int = PERMUTATIONS, seed: int = 0) -> Decomposition:
    """Variance components of scores `[S, O, T]`, and the permutation test of the order effect."""
    seeds, orders, _ = scores.shape
    # relative to the first order of each seed, so that equal orders have a variance of exactly 0
    shifted = scores - scores[:, :1]
    order_means, seed_means = shifted.mean(axis=0), shifted.mean(axis=1, keepdims=True)
    rest = shifted - order_means - seed_means + shifted.mean(axis=(0, 1))
    from_first_seed = scores - scores[:1]
    return Decomposition(
        average=metrics.average(scores),
        variance=metrics.variance(scores),
        order_variance=metrics.order_variance(scores),
        seed_variance=metrics.seed_variance(scores),
        order_effect=float(order_means.var(axis=0).mean()),
        seed_effect=float(from_first_seed.mean(axis=1).var(axis=0).mean()),
        interaction=float((rest**2).mean()),
        fair_order_variance=metrics.order_variance(scores) * orders / max(orders - 1, 1),
        fair_seed_variance=metrics.seed_variance(scores) * seeds / max(seeds - 1, 1),
        task_order_variance=shifted.var(axis=1).mean(axis=0),
        task_seed_variance=from_first_seed.var(axis=0).mean(axis=0),
        p_value=order_p_value(scores, permutations=permutations, seed=seed),
        smallest_p_value=smallest_p_value(seeds, orders, permutations),
    )


def smallest_p_value(seeds: int, orders: int, permutations: int = PERMUTATIONS) -> float:
    """The smallest possible p-value, 1 / number of different relabellings."""
    return 1.0 / min(math.factorial(orders) ** (seeds - 1), permutations + 1)


def order_p_value(scores: Array, *, permutations: int = PERMUTATIONS, seed: int = 0) -> float:
    """p-value of "the order has no effect", by permuting orders within each seed.

    Null hypothesis: given the seed, the runs are exchangeable, whatever their orders. Then the
    labels of the orders can be shuffled within each seed, independently between seeds. Statistic:
    the variance of the orders' means over seeds, mean_t Var_o mean_s S[s, o, t], the
    `order_effect`: large if the *same* orders do well or badly with every seed. The scores of all
    tasks of one run stay together. Relabelling all seeds alike changes nothing, so the first seed
    is not relabelled: (O!)^(S-1) cases. All of them are enumerated if they are at most
    `permutations`; else that many are drawn, and p = (1 + count) / (1 + permutations).
    """
    seeds, orders, _ = scores.shape
    # relative to the first order, as in `decompose`, then to the mean of the seed's orders
    centred = scores - scores[:, :1]
    centred = centred - centred.mean(axis=1, keepdims=True)
    cases = math.factorial(orders) ** (seeds - 1)
    if cases <= permutations:
        arrangements = list(itertools.permutations(range(orders)))
        labels = np.array(list(itertools.product(arrangements, repeat=seeds - 1)))
        labels = labels.reshape(cases, seeds - 1, orders)
    else:
        generator = np.random.default_rng(seed)
        labels = np.tile(np.arange(orders), (permutations, seeds - 1, 1))
        labels = generator.permuted(labels, axis=2)
    observed = float(np.square(centred.sum(axis=0)).sum())
    statistics = np.array([_statistic(centred, relabelling) for relabelling in labels])
    # sums in another order may differ in their last bits, and equal statistics must count as equal
    slack = 1e-10 * float(np.square(centred).sum())
    count = int((statistics >= observed - slack).sum())
    return count / cases if cases <= permutations else (1 + count) / (1 + permutations)


def _statistic(centred: Array, labels: NDArray[np.int64]) -> float:
    """The order effect, up to constants, with the orders `[S - 1, O]` of all but the first seed."""
    total = centred[0].copy()
    for scores, order in zip(centred[1:], labels, strict=True):
        total += scores[order]
    return float(np.square(total).sum())
