"""Bayes' rule for N weights in one kernel: twenty tiny ones cost a GPU more than a layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..particles.kernels.fused import kernels, padded, runs_on

PARTICLES = 16384  # one program holds them all


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
    """What `SteppedFilter.reweigh` does, in one kernel; all but the first two change in place."""
    survivors = torch.empty_like(candidates)
    as_bytes = [t.view(torch.uint8) for t in (candidates, alive, failed, survivors)]
    kernels.reweigh[(1,)](
        log_likelihood, as_bytes[0], log_weights, log_evidence, as_bytes[1], as_bytes[2], steps,
        as_bytes[3], len(log_weights), BLOCK=padded(len(log_weights)),
    )  # fmt: skip
    return survivors
