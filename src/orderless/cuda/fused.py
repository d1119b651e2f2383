"""The small kernels of a step on a GPU, fused with Triton.

A step of many small networks is some hundred kernels of a few microseconds each, which spend most
of their time on launches. The callers contain the same formulas in torch, for tensors that the
kernels here do not support. Triton comes with torch's CUDA builds; without it torch is used.
"""

import math
import warnings
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    from . import kernels
except ImportError:  # Triton is not installed
    kernels = None  # type: ignore[assignment]

LOGITS = 8192  # entries of a particle's padded table of logits, at most
PARTICLES = 16384  # particles whose weights fit one program, at most


@cache
def _works() -> bool:
    """Whether Triton works, tried once: the C compiler that it needs may be missing."""
    one = torch.ones(1, device="cuda")
    try:
        add_normal(one, torch.zeros(1, dtype=torch.int32, device="cuda"), one.clone())
    except Exception as error:
        warnings.warn(
            f"Triton does not work here, so torch's own kernels are used: {error}", stacklevel=2
        )
        return False
    return True


def runs_on(tensor: Tensor) -> bool:
    """Whether Triton supports a tensor: on the current GPU, outside of torch.func transforms."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    if kernels is None or not tensor.is_cuda or wrapped(tensor):
        return False
    return tensor.get_device() == torch.cuda.current_device() and _works()


def padded(size: int) -> int:
    """The next power of two: the sizes of Triton's blocks."""
    return 1 << (size - 1).bit_length()


def can_add_normal(parameter: Tensor) -> bool:
    plain = parameter.dtype is torch.float32 and parameter.is_contiguous()
    return plain and runs_on(parameter)


def add_normal(parameter: Tensor, keys: Tensor, radius: Tensor) -> None:
    """x_n += radius_n * `random.normal` of key n; parameter `[N, ...]`, keys and radius `[N]`."""
    n, count = len(keys), parameter[0].numel()
    half, block = (count + 1) // 2, 1024
    grid = (math.ceil(half / block), n)
    kernels.add_normal[grid](parameter, keys, radius, count, half, BLOCK=block)


class CrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of each particle's logits `[N, B, C]` for shared labels `[B]`: `[N]`."""

    reads_only_its_inputs = True

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(logits, labels)
        result = torch.empty(logits.shape[0], dtype=logits.dtype, device=logits.device)
        return _run_cross_entropy(logits, labels, result, result, backward=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits, labels = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative, by torch's own kernels
            losses = torch.stack([F.cross_entropy(own, labels) for own in logits])
            (slope,) = torch.autograd.grad(losses, logits, grads[0], create_graph=True)
            return slope, None
        result = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        upstream = grads[0].contiguous()
        return _run_cross_entropy(logits, labels, upstream, result, backward=True), None


def _run_cross_entropy(
    logits: Tensor, labels: Tensor, upstream: Tensor, result: Tensor, backward: bool
) -> Tensor:
    n, batch, classes = logits.shape
    kernels.cross_entropy[(n,)](
        logits, labels, upstream, result, batch, classes, logits.stride(0), logits.stride(1),
        BACKWARD=backward, ROWS=padded(batch), COLUMNS=padded(classes),
    )  # fmt: skip
    return result


def can_cross_entropy(logits: Tensor, labels: Tensor) -> bool:
    return (
        logits.dtype is torch.float32
        and runs_on(logits)
        and padded(logits.shape[1]) * padded(logits.shape[2]) <= LOGITS
        and logits.stride(2) == 1
        and labels.is_contiguous()
    )


def can_reweigh(log_weights: Tensor) -> bool:
    return runs_on(log_weights) and len(log_weights) <= PARTICLES


def reweigh(
    log_likelihood: Tensor,
    candidates: Tensor,
    log_weights: Tensor,
    log_evidence: Tensor,
    alive: Tensor,
    failed: Tensor,
    steps: Tensor,
) -> None:
    """`ParticleFilter.reweigh` in one kernel; all but the first two arguments change in place."""
    # torch broadcasts one number to all particles; the kernel reads an entry for each
    log_likelihood, candidates = (
        tensor.expand_as(log_weights).contiguous() for tensor in (log_likelihood, candidates)
    )
    as_bytes = [tensor.view(torch.uint8) for tensor in (candidates, alive, failed)]
    kernels.reweigh[(1,)](
        log_likelihood, as_bytes[0], log_weights, log_evidence, as_bytes[1], as_bytes[2], steps,
        len(log_weights), BLOCK=padded(len(log_weights)),
    )  # fmt: skip
