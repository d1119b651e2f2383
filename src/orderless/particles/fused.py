"""The small kernels of a step on a GPU, fused with Triton.

A step of many small networks is some hundred kernels of a few microseconds each, most of whose time
is starting and stopping. What is fused here is written out in torch where it is called; both are
the same formula. Triton comes with torch's CUDA builds; without it torch's own kernels do the work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BATCH = 32  # the update keeps its batch's factors in registers, up to this many samples
OVERLAP = 16  # of new and old inputs: so many samples each
LOGITS = 8192  # entries of a particle's padded table of logits


def runs_on(tensor: Tensor) -> bool:
    """Whether Triton can take a tensor: on a GPU, no transform of torch.func around it."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return triton is not None and tensor.is_cuda and not wrapped(tensor)


def usable(*tensors: Tensor | None) -> bool:
    """Whether the kernels of this file can take these: they are for float32."""
    return all(t is None or (t.dtype is torch.float32 and runs_on(t)) for t in tensors)


def _padded(size: int) -> int:
    """Triton's blocks have sizes that are powers of two."""
    return 1 << (size - 1).bit_length()


# ---------------------------------------------------------------------- W += delta^T x

if triton is not None:

    @triton.jit
    def _add_factors_kernel(
        weight, bias, delta, inputs, alive,
        outputs_size, inputs_size, delta_n, delta_b, inputs_n, inputs_b,
        BATCH: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        n = tl.program_id(2).to(tl.int64)
        if tl.load(alive + n) != 0:
            o = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
            i = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
            inside = (o[:, None] < outputs_size) & (i[None, :] < inputs_size)
            place = weight + (n * outputs_size + o[:, None]) * inputs_size + i[None, :]
            moved = tl.load(place, mask=inside)
            total = tl.zeros([ROWS], tl.float32)
            for b in tl.static_range(BATCH):
                d = tl.load(delta + n * delta_n + b * delta_b + o, mask=o < outputs_size, other=0.0)
                x = tl.load(
                    inputs + n * inputs_n + b * inputs_b + i, mask=i < inputs_size, other=0.0
                )
                moved += d[:, None] * x[None, :]
                total += d
            tl.store(place, moved, mask=inside)
            if HAS_BIAS and tl.program_id(0) == 0:
                at = bias + n * outputs_size + o
                tl.store(at, tl.load(at, mask=o < outputs_size) + total, mask=o < outputs_size)


def can_add_factors(weight: Tensor, bias: Tensor | None, delta: Tensor, inputs: Tensor) -> bool:
    return (
        delta.shape[1] <= BATCH
        and usable(weight, bias, delta, inputs)
        and weight.is_contiguous()
        and (bias is None or bias.is_contiguous())
        and delta.stride(2) == inputs.stride(2) == 1
    )


def add_factors(
    weight: Tensor, bias: Tensor | None, delta: Tensor, inputs: Tensor, alive: Tensor
) -> None:
    """W_n += delta_n^T inputs_n and b_n += sum_b delta_n for the living; nobody else is touched."""
    n, outputs_size, inputs_size = weight.shape
    rows, columns = (
        min(32, _padded(outputs_size)),
        min(128, _padded(inputs_size)),
    )
    grid = (triton.cdiv(inputs_size, columns), triton.cdiv(outputs_size, rows), n)
    _add_factors_kernel[grid](
        weight, bias if bias is not None else weight, delta, inputs, alive.view(torch.uint8),
        outputs_size, inputs_size,
        delta.stride(0), delta.stride(1), inputs.stride(0), inputs.stride(1),
        BATCH=delta.shape[1], HAS_BIAS=bias is not None, ROWS=rows, COLUMNS=columns,
    )  # fmt: skip


# ---------------------------------------------------------------------- y + (x z^T + 1) delta

if triton is not None:

    @triton.jit
    def _displaced_kernel(
        y, x, inputs, delta, result,
        outputs_size, rows, batch,
        y_n, y_b, x_n, x_b, inputs_n, inputs_b, delta_n, delta_b,
        ONE: tl.constexpr, ROWS: tl.constexpr, BATCH: tl.constexpr,
        INPUTS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        n = tl.program_id(1).to(tl.int64)
        r, b, k = tl.arange(0, ROWS), tl.arange(0, BATCH), tl.arange(0, INNER)
        overlap = tl.zeros([ROWS, BATCH], tl.float32) + ONE
        for start in range(0, INPUTS, INNER):
            i = start + k
            new = tl.load(
                x + n * x_n + r[:, None] * x_b + i[None, :],
                mask=(r[:, None] < rows) & (i[None, :] < INPUTS), other=0.0,
            )  # fmt: skip
            old = tl.load(
                inputs + n * inputs_n + b[:, None] * inputs_b + i[None, :],
                mask=(b[:, None] < batch) & (i[None, :] < INPUTS), other=0.0,
            )  # fmt: skip
            overlap += tl.sum(new[:, None, :] * old[None, :, :], 2)
        o = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        step = tl.load(
            delta + n * delta_n + b[:, None] * delta_b + o[None, :],
            mask=(b[:, None] < batch) & (o[None, :] < outputs_size), other=0.0,
        )  # fmt: skip
        inside = (r[:, None] < rows) & (o[None, :] < outputs_size)
        before = tl.load(y + n * y_n + r[:, None] * y_b + o[None, :], mask=inside)
        after = before + tl.sum(overlap[:, :, None] * step[None, :, :], 1)
        place = result + (n * rows + r[:, None]) * outputs_size + o[None, :]
        tl.store(place, after, mask=inside)


def can_displace(y: Tensor, x: Tensor, inputs: Tensor, delta: Tensor) -> bool:
    return (
        max(x.shape[1], inputs.shape[1]) <= OVERLAP
        and usable(y, x, inputs, delta)
        and all(t.stride(2) == 1 for t in (y, x, inputs, delta))
    )


def displaced(y: Tensor, x: Tensor, inputs: Tensor, delta: Tensor, bias: bool) -> Tensor:
    """y_n + (x_n inputs_n^T + 1) delta_n: what W + delta^T inputs makes of x, where W makes y.

    The 1 is there with a bias, which is a weight whose input is 1.
    """
    n, rows, outputs_size = y.shape
    result = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    columns = min(64, _padded(outputs_size))
    grid = (triton.cdiv(outputs_size, columns), n)
    strides = [t.stride(axis) for t in (y, x, inputs, delta) for axis in (0, 1)]
    _displaced_kernel[grid](
        y, x, inputs, delta, result,
        outputs_size, rows, inputs.shape[1], *strides,
        ONE=float(bias), ROWS=_padded(rows), BATCH=_padded(inputs.shape[1]),
        INPUTS=x.shape[2], INNER=64, COLUMNS=columns,
    )  # fmt: skip
    return result


# ---------------------------------------------------------------------- cross-entropy

if triton is not None:

    @triton.jit
    def _cross_entropy_kernel(
        logits, labels, upstream, result, batch, classes, logits_n, logits_b,
        BACKWARD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        n = tl.program_id(0).to(tl.int64)
        r, c = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
        label = tl.load(labels + r, mask=r < batch, other=-100)
        counts = label != -100  # what F.cross_entropy ignores
        number = tl.sum(counts.to(tl.float32), 0)
        inside = (r[:, None] < batch) & (c[None, :] < classes)
        place = n * logits_n + r[:, None] * logits_b + c[None, :]
        z = tl.load(logits + place, mask=inside, other=-float("inf"))
        top = tl.max(tl.where(inside, z, -float("inf")), 1)
        top = tl.where(r < batch, top, 0.0)
        shares = tl.exp(z - top[:, None])
        total = tl.where(r < batch, tl.sum(shares, 1), 1.0)
        target = c[None, :] == label[:, None]
        if BACKWARD:
            slope = tl.load(upstream + n) / number
            gradient = (shares / total[:, None] - target.to(tl.float32)) * slope
            gradient = tl.where(counts[:, None], gradient, 0.0)
            place = (n * batch + r[:, None]) * classes + c[None, :]
            tl.store(result + place, gradient, mask=inside)
        else:
            chosen = tl.sum(tl.where(target, z, 0.0), 1)
            losses = tl.where(counts, top + tl.log(total) - chosen, 0.0)
            # a label that is no class has no loss: it must not look as if it had
            wrong = counts & ((label < 0) | (label >= classes))
            losses = tl.where(wrong, float("nan"), losses)
            tl.store(result + n, tl.sum(losses, 0) / number)


class CrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of each particle's logits `[N, B, C]` for shared labels `[B]`: `[N]`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(logits, labels)
        result = torch.empty(logits.shape[0], dtype=logits.dtype, device=logits.device)
        return _run_cross_entropy(logits, labels, result, result, backward=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits, labels = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants the second derivative
            return _differentiable_slope(logits, labels, grads[0]), None
        result = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        upstream = grads[0].contiguous()
        return _run_cross_entropy(logits, labels, upstream, result, backward=True), None


def _differentiable_slope(logits: Tensor, labels: Tensor, upstream: Tensor) -> Tensor:
    counts = (labels != -100).to(logits.dtype)
    target = F.one_hot(labels.clamp(min=0), logits.shape[2])
    each = (logits.softmax(2) - target) * counts.unsqueeze(1)
    return each * (upstream / counts.sum()).view(-1, 1, 1)


def _run_cross_entropy(
    logits: Tensor, labels: Tensor, upstream: Tensor, result: Tensor, backward: bool
) -> Tensor:
    n, batch, classes = logits.shape
    _cross_entropy_kernel[(n,)](
        logits, labels, upstream, result, batch, classes, logits.stride(0), logits.stride(1),
        BACKWARD=backward, ROWS=_padded(batch), COLUMNS=_padded(classes),
    )  # fmt: skip
    return result


def can_cross_entropy(logits: Tensor, labels: Tensor) -> bool:
    return (
        usable(logits)
        and _padded(logits.shape[1]) * _padded(logits.shape[2]) <= LOGITS
        and logits.stride(2) == 1
        and labels.is_contiguous()
    )
