"""N linear layers as one batched product, and plain gradient steps inside their backward pass.

The gradient of a linear layer's weight over a batch is dW = delta^T x, with x `[B, I]` its inputs
and delta `[B, O]` the gradient of its outputs. Plain gradient descent need not store it:

    W <- W - sigma^2 delta^T x

is one product accumulated into W, taken where the backward pass has computed delta. That saves
three passes over the parameters of all particles, most of a step's memory traffic. It is correct if
nothing else in the graph reads W afterwards or adds to its gradient. Autograd's graph knows every
differentiable use, and its version counters turn a use that is not in the graph into an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .parameter import Descent, ParticleParameter


def _shared(x: Tensor) -> bool:
    """Whether an `[N, ...]` tensor is one `[...]` tensor repeated."""
    return x.stride(0) == 0 and x.shape[0] > 1


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x_n W_n^T + b_n: `[N, B, O]`, computed in the precision of x and weight."""
    bias = None if bias is None else bias.to(x.dtype)
    if _shared(x) and x.device.type == "cuda":  # all layers side by side: one wide product
        n, outputs, inputs = weight.shape
        wide = weight.reshape(n * outputs, inputs).mT
        y = torch.mm(x[0], wide) if bias is None else torch.addmm(bias.reshape(-1), x[0], wide)
        return y.unflatten(1, (n, outputs)).transpose(0, 1)
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


class BatchedLinear(torch.autograd.Function):
    """y_n = x_n W_n^T + b_n. x `[N, B, I]`, weight `[N, O, I]`, bias `[N, O]` or None.

    Written as a function because autograd's backward of `baddbmm(b, x, W^T)` yields dW transposed
    in memory, and adding that to W costs more than computing it; and because it may take the step.
    """

    reads_only_its_inputs = True

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        cast = weight.to(x.dtype)
        ctx.save_for_backward(x, weight, cast)
        ctx.parameters = weight, bias
        return _product(x, cast, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (delta,) = grads
        x, weight, cast = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        if torch.is_grad_enabled():  # a second derivative, with respect to the weight itself
            cast = weight.to(cast.dtype)
        grad_x = torch.bmm(delta, cast.to(delta.dtype)) if wants_x else None
        parameter, bias = ctx.parameters
        total = delta.sum(1).to(weight.dtype) if wants_bias or _descends(parameter) else None
        if wants_bias and _descends(bias):
            _step(bias, total)
            wants_bias = False
        if wants_weight and _descends(parameter):
            parameter.descent.slopes.append(total)
            _step_by_factors(parameter, delta, x)
            wants_weight = False
        grad_weight = torch.bmm(delta.mT, x).to(weight.dtype) if wants_weight else None
        return grad_x, grad_weight, total if wants_bias else None


def _descends(parameter: Any) -> bool:
    return isinstance(parameter, ParticleParameter) and parameter.descent is not None


@torch.no_grad()
def _step(bias: Any, gradient: Any) -> None:
    """b <- b - sigma^2 g."""
    rate = bias.descent.rate
    if isinstance(rate, Tensor):
        bias.sub_(rate * gradient)
    else:
        bias.sub_(gradient, alpha=rate)


@torch.no_grad()
def _step_by_factors(weight: ParticleParameter, delta: Tensor, x: Tensor) -> None:
    """W <- W - sigma^2 delta^T x: the gradient itself is never stored."""
    assert weight.descent is not None
    rate = weight.descent.rate
    delta = delta.to(weight.dtype)
    x = x.to(weight.dtype)
    with torch.autocast(weight.device.type, enabled=False):
        if isinstance(rate, Tensor):
            weight.baddbmm_((rate * delta).mT, x, alpha=-1.0)
        else:
            weight.baddbmm_(delta.mT, x, alpha=-rate)


def batched_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` for N networks: x `[N, ..., I]` to `[N, ..., O]`."""
    flat = x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)
    if torch.is_grad_enabled():
        y = BatchedLinear.apply(flat, weight, bias)
    else:
        y = _product(flat, weight.to(x.dtype), bias)
    return y.unflatten(1, x.shape[1:-1]) if x.dim() > 2 else y.squeeze(1)


AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


def used_once(losses: Tensor) -> list[ParticleParameter]:
    """The parameters that the graph of the losses uses once, in a batched Linear layer.

    None at all if the graph contains somebody's own autograd function, whose backward pass may use
    parameters that the graph does not show.
    """
    uses: dict[Any, int] = {}
    in_layers = set()
    waiting = [losses.grad_fn]
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        function = getattr(node, "_forward_cls", None)  # of a function that is written in Python
        if function is not None and not getattr(function, "reads_only_its_inputs", False):
            return []
        for parent, _ in node.next_functions:
            if isinstance(parent, AccumulateGrad):
                uses[parent] = uses.get(parent, 0) + 1
                if function is BatchedLinear:
                    in_layers.add(parent)
            elif parent is not None and parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    found = (leaf.variable for leaf in in_layers if uses[leaf] == 1)
    return [p for p in found if isinstance(p, ParticleParameter) and not _hooked(p)]


def _hooked(parameter: Tensor) -> bool:
    """Whether a hook is registered on the gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)  # type: ignore[attr-defined]


@contextmanager
def descending(rates: dict[ParticleParameter, float | Tensor]) -> Iterator[list[Tensor]]:
    """Backward passes inside take the step of these parameters, at these rates.

    Yields the slopes that they see; see `Descent`.
    """
    slopes: list[Tensor] = []
    for parameter, rate in rates.items():
        parameter.descent = Descent(rate, slopes)
    try:
        yield slopes
    finally:
        for parameter in rates:
            parameter.descent = None
