"""Bayes' rule for N weights in one kernel: twenty tiny ones cost a GPU more than a layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..particles.fused import runs_on, triton

PARTICLES = 16384  # one program holds them all

if triton is not None:
    import triton.language as tl

    @triton.jit
    def _reweigh_kernel(
        log_likelihood, candidates, log_weights, log_evidence, alive, failed, steps, survivors,
        n, BLOCK: tl.constexpr,
    ):  # fmt: skip
        infinity = float("inf")
        i = tl.arange(0, BLOCK)
        inside = i < n
        gain = tl.load(log_likelihood + i, mask=inside, other=infinity)
        lives = (tl.load(candidates + i, mask=inside, other=0) != 0) & (tl.abs(gain) < infinity)
        tl.store(survivors + i, lives.to(tl.uint8), mask=inside)
        grown = tl.load(log_weights + i, mask=inside, other=0.0) + tl.where(lives, gain, 0.0)
        grown = tl.where(lives, grown, -infinity)
        top = tl.max(grown, 0)
        if tl.abs(top) < infinity:
            total = top + tl.log(tl.sum(tl.exp(grown - top), 0))
            tl.store(log_weights + i, grown - total, mask=inside)
            tl.store(alive + i, lives.to(tl.uint8), mask=inside)
            tl.store(log_evidence, tl.load(log_evidence) + total)
            tl.store(steps, tl.load(steps) + 1)
        else:
            tl.store(failed, tl.full([], 1, tl.uint8))


def can_reweigh(log_likelihood: Tensor) -> bool:
    return runs_on(log_likelihood) and len(log_likelihood) <= PARTICLES


def reweigh(
    log_likelihood: Tensor,
    candidates: Tensor,
    log_weights: Tensor,
    log_evidence: Tensor,
    alive: Tensor,
    failed: Tensor,
    steps: Tensor,
) -> Tensor:
    """What `SteppedFilter._reweigh` does, in one kernel; all but the first two change in place."""
    survivors = torch.empty_like(candidates)
    as_bytes = [t.view(torch.uint8) for t in (candidates, alive, failed, survivors)]
    _reweigh_kernel[(1,)](
        log_likelihood, as_bytes[0], log_weights, log_evidence, as_bytes[1], as_bytes[2], steps,
        as_bytes[3], len(log_weights), BLOCK=triton.next_power_of_2(len(log_weights)),
    )  # fmt: skip
    return survivors
