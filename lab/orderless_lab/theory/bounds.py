r"""The bounds of section 3 in corrected form, and as printed.

Assumed of a filter, with constants C and epsilon, for all sets and losses:

    D(p_hat[L], q_hat[L])                <= C D(p_hat, q_hat)          (error propagates)
    D(p_hat[L], p e^{-L} / int p e^{-L}) <= C D(p_hat, p) + epsilon    (updates are near Bayes)

Differences from the paper:

- (C^2 - 1) / (C - 1) is C + 1 and (C^T - 1) / (C - 1) is a sum of T powers; both are finite at
  C = 1.
- Theorem 1 as printed, with C^(T-2), needs C >= 1. A swap followed by m further updates costs
  2 epsilon (C + 1) C^m, with m anywhere from 0 to T - 2; for C < 1 the largest is at m = 0.
  A filter that forgets all but the last loss has C = 0, so the printed bound is 0 for T >= 3, but
  its result depends on which loss comes last. Therefore max(1, C)^(T-2) is used here.
- Theorem 2: moving L_i to the end takes T - i adjacent swaps, not T.
- Eq. (8), unrolled, already bounds the gap between any two orders, without the first assumption
  and without counting swaps: `direct_bound`. It is smaller than Theorem 1 for all but few swaps.
- Theorem 3: the ratio of the weights is the *likelihood* ratio at the final positions. It equals
  the posterior ratio if the prior is equal there. The paper assumes that it is equal at the initial
  positions, which is not sufficient. Its proof also writes x_T with half of the displacement.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from .sets import Loss


def unrolled_bound(C: float, epsilon: float, length: int, initial: float = 0.0) -> float:
    r"""$D(\hat p_T, p_T) \le C^T D(\hat p_0, p_0) + \epsilon \sum_{t<T} C^t$.

    `initial` is $D(\hat p_0, p_0)$, `length` is T.
    """
    _check(length, 0, C=C, epsilon=epsilon, initial=initial)
    return C**length * initial + epsilon * _powers(C, length)


def direct_bound(C: float, epsilon: float, length: int) -> float:
    r"""Any two orders of T losses end within $2\epsilon \sum_{t<T} C^t$ of each other.

    Both runs start at $\hat p_0$, and both stay within the unrolled bound of the posterior that
    starts at $p_0 = \hat p_0$. That posterior is a product and does not depend on the order. For N
    swaps the bound is below Theorem 1 if C = 1 and N > T/2, or C > 1 and N >= C^2 / (C^2 - 1).
    """
    return 2 * unrolled_bound(C, epsilon, length)


def adjacent_swap_bound(C: float, epsilon: float, later: int) -> float:
    r"""Swapping two neighbours with `later` = m updates after them: $2\epsilon(C+1)C^m$ at most."""
    _check(later, 0, "later", C=C, epsilon=epsilon)
    return 2 * epsilon * (C + 1) * C**later


def theorem_1(
    C: float, epsilon: float, length: int, swaps: int, *, as_printed: bool = False
) -> float:
    r"""Two orders of T losses, N adjacent swaps apart, end within $2N\epsilon(C+1)\max(1,C)^{T-2}$.

    `as_printed`: $2N\epsilon(C+1)C^{T-2}$, which is the same for C >= 1 and no bound for C < 1.
    """
    _check(length, 2, C=C, epsilon=epsilon)
    if not 0 <= swaps <= length * (length - 1) // 2:
        raise ValueError(
            f"two orders of {length} losses are at most {length * (length - 1) // 2} swaps apart, "
            f"got {swaps}"
        )
    growth = C if as_printed else max(1.0, C)
    return swaps * 2 * epsilon * (C + 1) * growth ** (length - 2)


def theorem_2(
    C: float,
    epsilon: float,
    k: float,
    beta: float,
    loss_bound: float,
    length: int,
    place: int,
    *,
    form: Literal["tight", "printed"] = "tight",
) -> float:
    r"""$E_{x \sim \hat p_0[L_1 \dots L_T]}[L_i(x)] \le \beta M$ plus the cost of moving $L_i$ last.

    `place` is i, from 1 to T; `loss_bound` is M. Needed besides C and epsilon: losses in [0, M],
    $E_p[L] - E_q[L] \le k D(p, q)$, and $E_{\hat p[L]}[L] \le \beta E_{\hat p}[L]$.

    - `"tight"`: L_i passes L_{i+1}, ..., L_T one after another; the swap that lets it pass L_j is
      followed by T - j updates: $\beta M + 2k\epsilon(C+1)\sum_{m<T-i} C^m$, for every C.
    - `"printed"`: $\beta M + 2kT\epsilon(C+1)C^{T-2}$, the paper's.

    Instead of the cost of these swaps, k times `direct_bound` is a bound as well, and so is k times
    `theorem_1` with T - i swaps.
    """
    _check(length, 2, C=C, epsilon=epsilon, k=k, beta=beta, loss_bound=loss_bound)
    if not 1 <= place <= length:
        raise ValueError(f"place must lie between 1 and length={length}, got {place}")
    powers = {"tight": _powers(C, length - place), "printed": length * C ** (length - 2)}
    if form not in powers:
        raise ValueError(f"form must be one of {', '.join(powers)}, got {form!r}")
    return beta * loss_bound + k * 2 * epsilon * (C + 1) * powers[form]


def log_posterior_ratios(
    positions: Tensor, losses: Sequence[Loss], log_prior: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    r"""Theorem 3: log of $p_T(x_T^{(i)}) / p_T(x_T^{(j)})$ at the final positions, `[N, N]`.

    Without `log_prior` (a function from positions `[N, d]` to `[N]`) it is the likelihood ratio
    $e^{-\sum_t L_t(x_T^{(i)})} / e^{-\sum_t L_t(x_T^{(j)})}$; for linear losses this equals
    $w_T^{(i)} / w_T^{(j)}$ exactly when the filter starts with equal weights.
    """
    with torch.no_grad():
        log_densities = -torch.stack([loss(positions).double() for loss in losses]).sum(0)
        if log_prior is not None:
            log_densities = log_densities + log_prior(positions).double()
    return log_densities[:, None] - log_densities[None, :]


def _powers(C: float, count: int) -> float:
    """sum of C^m over m < count; (C^count - 1) / (C - 1) where that is defined."""
    return float(sum(C**m for m in range(count)))


def _check(length: int, least: int, name: str = "length", **constants: float) -> None:
    if length < least:
        raise ValueError(f"{name} must be at least {least}, got {length}")
    for constant, value in constants.items():
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{constant} must be finite and at least 0, got {value}")
