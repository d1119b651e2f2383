r"""The constants C, epsilon, k and beta of section 3, measured on small problems.

    C        D(p_hat[L], q_hat[L]) <= C D(p_hat, q_hat)
    epsilon  D(p_hat[L], p e^{-L} / int p e^{-L}) <= C D(p_hat, p) + epsilon
    k        E_p[L] - E_q[L] <= k D(p, q)
    beta     E_{p_hat[L]}[L] <= beta E_{p_hat}[L]

In the theorems they are suprema over all sets and losses. Measured constants are maxima over the
comparisons that were made: LOWER bounds of the suprema, which grow as more sets are compared. A
bound with constants from one collection of sets need not hold for other sets. But the proofs use
each inequality for finitely many sets only; `constants_of_swaps` and `constants_of_trajectory` make
exactly those comparisons, and with their constants the theorems hold for that run (up to rounding).

`represent` chooses how a particle set is interpreted:

- points (default): the set itself. Its Bayes update changes weights but not positions, so a filter
  that moves its particles has a larger epsilon, also for linear losses.
- `GridMixture(nodes, sigma2)`: the Gaussian mixture that the particles of the weighted particle
  filter represent, as a density on a grid. For linear losses epsilon is 0 up to rounding.

D(p_hat, q_hat) is then taken between the representations; it still obeys the triangle inequality.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from .discrepancy import Discrepancy
from .orders import swap_path
from .sets import Loss, Represent, Update, WeightedSet, bayes_update, expected_loss

Pairs = list[tuple[float, float]]
RESOLUTION = 1e-12


@dataclass(frozen=True)
class Constants:
    """Measured constants, lower bounds of the suprema in the theorems.

    `loss_bound` is M, the largest mean loss. A constant without any comparison is 0. It is infinite
    if no finite value satisfies its assumption: equal sets became different, or a loss was 0 before
    an update, or negative.
    """

    C: float
    epsilon: float
    k: float
    beta: float
    loss_bound: float


def points(p: WeightedSet) -> WeightedSet:
    return p


@dataclass
class Comparisons:
    """Collects comparisons, each as (right side, left side) of one assumption.

    Distances below `RESOLUTION` are rounding errors. Two sets that are this close before and after
    an update are equal, and the ratio of their distances has no meaning.
    """

    update: Update
    discrepancy: Discrepancy
    represent: Represent = points
    contractions: Pairs = field(default_factory=list)
    fidelities: Pairs = field(default_factory=list)
    differences: Pairs = field(default_factory=list)
    descents: Pairs = field(default_factory=list)

    def contraction(self, p: WeightedSet, q: WeightedSet, loss: Loss) -> None:
        """D(p[L], q[L]) against D(p, q), for particle sets p and q."""
        after = self.distance(self.update(p, loss), self.update(q, loss))
        self.contractions.append((self.distance(p, q), after))

    def fidelity(self, p_hat: WeightedSet, p: WeightedSet, loss: Loss) -> None:
        """D(p_hat[L], Bayes update of p) against D(p_hat, p), for a particle set and a density."""
        moved = self.represent(self.update(p_hat, loss))
        before = self.discrepancy(self.represent(p_hat), p)
        self.fidelities.append((before, self.discrepancy(moved, bayes_update(p, loss))))

    def difference(self, p: WeightedSet, q: WeightedSet, loss: Loss) -> None:
        """|E_p[L] - E_q[L]| against D(p, q), for particle sets p and q."""
        gap = expected_loss(self.represent(p), loss) - expected_loss(self.represent(q), loss)
        self.differences.append((self.distance(p, q), abs(gap)))

    def descent(self, p: WeightedSet, loss: Loss) -> None:
        """E_{p[L]}[L] against E_p[L], for a particle set p."""
        before = expected_loss(self.represent(p), loss)
        after = expected_loss(self.represent(self.update(p, loss)), loss)
        negative = min(before, after) < 0  # Theorem 2 needs losses in [0, M]
        self.descents.append((before, math.inf if negative else after))

    def distance(self, p: WeightedSet, q: WeightedSet) -> float:
        """D(p, q) between the representations of two particle sets."""
        return self.discrepancy(self.represent(p), self.represent(q))

    def constants(self) -> Constants:
        """The smallest constants with which all comparisons so far satisfy their assumptions."""
        C = self._largest_ratio(self.contractions)
        # after <= C before + epsilon, where C may be infinite
        excess = [after - (C * before if before > 0 else 0.0) for before, after in self.fidelities]
        return Constants(
            C=C,
            epsilon=max([0.0, *excess]),
            k=self._largest_ratio(self.differences),
            beta=self._largest_ratio(self.descents),
            loss_bound=max([0.0, *(before for before, _ in self.descents)]),
        )

    def _largest_ratio(self, pairs: Pairs) -> float:
        """The smallest c with after <= c before in all pairs above the resolution."""
        apart = [(before, after) for before, after in pairs if max(before, after) > RESOLUTION]
        return max([0.0, *(a / b if b > 0 else math.inf for b, a in apart)])


def constants_of_trajectory(
    update: Update,
    start: WeightedSet,
    prior: WeightedSet,
    losses: Sequence[Loss],
    discrepancy: Discrepancy,
    *,
    represent: Represent = points,
) -> Constants:
    r"""The constants that the unrolled bound uses for one run.

    The bound follows by induction over t from the fidelity of each pair $(\hat p_t, p_t)$ alone,
    with $\hat p_t$ the particles and $p_t$ the true posterior from `prior`. The contraction between
    $\hat p_t$ and the next set is compared to get a C.
    """
    comparisons = Comparisons(update, discrepancy, represent)
    p_hat = start
    p = prior
    for loss in losses:
        comparisons.fidelity(p_hat, p, loss)
        comparisons.contraction(p_hat, update(p_hat, loss), loss)
        p_hat = update(p_hat, loss)
        p = bayes_update(p, loss)
    return comparisons.constants()


def constants_of_swaps(
    update: Update,
    start: WeightedSet,
    losses: Sequence[Loss],
    order: Sequence[int],
    discrepancy: Discrepancy,
    *,
    represent: Represent = points,
) -> Constants:
    r"""The constants that Theorems 1 and 2 use for L_1 ... L_T against L in `order` (from 0).

    The proof goes from one order to the other by adjacent swaps. For each swap of a, b after a
    common prefix with the set $\hat p$, and for the updates L that follow, it uses

    - fidelity of $(\hat p, \hat p)$ under a, then of $(\hat p[a], \hat p e^{-a})$ under b, and the
      same with a and b exchanged;
    - contraction of the two sets, $\hat p[a, b, ...]$ and $\hat p[b, a, ...]$, under each L.

    Theorem 2 adds the difference in every loss between the two ends, and the descent of each loss
    from the set before its update in either order.
    """
    comparisons = Comparisons(update, discrepancy, represent)
    run = list(losses)
    for place in reversed(swap_path(order)):
        a = run[place]
        b = run[place + 1]
        p_hat = reduce(update, run[:place], start)
        density = represent(p_hat)
        for first, second in ((a, b), (b, a)):
            comparisons.fidelity(p_hat, density, first)
            comparisons.fidelity(update(p_hat, first), bayes_update(density, first), second)
        left = reduce(update, [a, b], p_hat)
        right = reduce(update, [b, a], p_hat)
        for loss in run[place + 2 :]:
            comparisons.contraction(left, right, loss)
            left = update(left, loss)
            right = update(right, loss)
        run[place : place + 2] = [b, a]

    ends = []
    for sequence in (losses, run):
        p_hat = start
        for loss in sequence:
            comparisons.descent(p_hat, loss)
            p_hat = update(p_hat, loss)
        ends.append(p_hat)
    for loss in losses:
        comparisons.difference(ends[0], ends[1], loss)
    return comparisons.constants()
