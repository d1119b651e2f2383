"""N linear layers as one batched product, and plain gradient steps inside their backward pass.

The gradient of a linear layer's weight over a batch is dW = delta^T x, with x `[B, I]` its inputs
and delta `[B, O]` the gradient of its outputs. Plain gradient descent need not store it:

    W <- W - sigma^2 delta^T x

is one product accumulated into W, taken where the backward pass has computed delta. That saves
three passes over the parameters of all particles, most of a step's memory traffic. It is correct if
nothing else in the graph reads W afterwards or adds to its gradient. Autograd's graph knows every
differentiable use, and its version counters turn a use that is not in the graph into an error.

The weights of a filter need the losses after the step on the same data. Where all particles share
x, as in the first layer, its outputs y = x W^T + b are then known without W,

    y <- y - (sigma^2 x x^T + sigma_b^2) delta

with sigma_b^2 the bias's own rate. That costs B rather than I products for each output, and is
taken on a CPU (on a GPU it was never measured). It is correct if x, W and b are in the same memory
as then and nobody has written there, which their versions tell.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from .device import without_autocast
from .stacking import ParticleParameter


def batched_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` for N networks: x `[N, ..., I]`, weight `[N, O, I]`, to `[N, ..., O]`."""
    if x.dim() != 3:
        rows = x.reshape(len(x), -1, x.shape[-1])
        return batched_linear(rows, weight, bias).reshape(*x.shape[:-1], -1)
    if torch.is_grad_enabled():
        return BatchedLinear.apply(x, weight, bias)  # type: ignore[no-any-return]
    descent = getattr(weight, "descent", None)
    if descent is not None and descent.last is not None and descent.last.is_same(x, bias):
        return descent.last.outputs_now()  # type: ignore[no-any-return]
    return _product(x, weight.to(x.dtype), bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x_n W_n^T + b_n: `[N, B, O]`, computed in the precision of x and weight."""
    bias = None if bias is None else bias.to(x.dtype)
    all_share_x = x.stride(0) == 0 and len(x) > 1
    if all_share_x and x.device.type == "cuda":  # all layers side by side: one wide product
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
        y = _product(x, cast, bias)
        cheaper = x.stride(0) == 0 and x.shape[1] < x.shape[2] and x.is_cpu
        ctx.outputs = y.detach() if cheaper and cast is weight else None
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (delta,) = grads
        x, weight, cast = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        if torch.is_grad_enabled():  # a second derivative, with respect to the weight itself
            cast = weight.to(cast.dtype)
        grad_x = torch.bmm(delta, cast.to(delta.dtype)) if wants_x else None
        descent = _waiting(ctx.parameters[0])
        bias_descent = _waiting(ctx.parameters[1])
        total: Any = None
        if wants_bias or descent is not None:
            total = delta.sum(1).to(weight.dtype)
        grad_bias = total if wants_bias else None
        if bias_descent is not None:
            bias_descent.step(total)
            grad_bias = None
        if descent is not None:
            descent.slope = total
            descent.step_by_factors(delta, x)
            wants_weight = False
            moved = ctx.parameters[1] is None or bias_descent is not None
            if ctx.outputs is not None and moved:
                descent.last = Pass(x, ctx.outputs, delta, descent, bias_descent)
        grad_weight = torch.bmm(delta.mT, x).to(weight.dtype) if wants_weight else None
        return grad_x, grad_weight, grad_bias


@dataclass
class Descent:
    """The plain gradient step of a parameter, taken as soon as its layer knows the gradient."""

    parameter: ParticleParameter
    rate: float | Tensor  # sigma^2
    taken: bool = False
    # Of a weight: the gradient of its layer's outputs, summed over the batch `[N, O]`. It is finite
    # only where the gradient is.
    slope: Tensor | None = None
    last: Pass | None = None  # of a weight whose layer's outputs are now known

    def step(self, gradient: Tensor) -> None:
        """b <- b - sigma^2 g."""
        self.parameter.sub_(self.rate * gradient)
        self.taken = True

    def step_by_factors(self, delta: Tensor, x: Tensor) -> None:
        """W <- W - sigma^2 delta^T x: the gradient itself is never stored."""
        weight = self.parameter
        delta = delta.to(weight.dtype)
        x = x.to(weight.dtype)
        rate = self.rate
        if isinstance(rate, Tensor):  # on a GPU, where schedulers change it in a recorded step
            delta = rate * delta
            rate = 1.0
        with without_autocast(weight):
            weight.baddbmm_(delta.mT, x, alpha=-rate)
        self.taken = True


def _waiting(parameter: Any) -> Descent | None:
    """The step of a parameter, if one is still to be taken."""
    descent: Descent | None = getattr(parameter, "descent", None)
    return None if descent is None or descent.taken else descent


class Pass:
    """A layer's pass before its step, from which the outputs after the step follow."""

    def __init__(
        self, x: Tensor, y: Tensor, delta: Tensor, weight: Descent, bias: Descent | None
    ) -> None:
        self.x = x  # `[N, B, I]`, the same for all N
        self.y = y  # `[N, B, O]`
        self.delta = delta
        self.rate = weight.rate
        self.bias_rate = 0.0 if bias is None else bias.rate
        self.bias = None if bias is None else bias.parameter
        self.tensors = [x, weight.parameter, *([] if bias is None else [bias.parameter])]
        self.versions = [tensor._version for tensor in self.tensors]

    def is_same(self, x: Tensor, bias: Tensor | None) -> bool:
        """Whether the layer would compute with what the step left; y may be overwritten (ReLU)."""
        unchanged = self.versions == [tensor._version for tensor in self.tensors]
        return unchanged and self.y._version == 0 and bias is self.bias and x.is_set_to(self.x)

    def outputs_now(self) -> Tensor:
        """y - (sigma^2 x x^T + sigma_b^2) delta: `[N, B, O]`."""
        x = self.x[0]
        products = self.rate * (x @ x.mT) + self.bias_rate
        return torch.baddbmm(self.y, products.expand(len(self.y), -1, -1), self.delta, alpha=-1)


PLAIN_STEP = inspect.unwrap(torch.optim.SGD.step)
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
    once = [leaf.variable for leaf in in_layers if uses[leaf] == 1]
    return [
        p
        for p in once
        if isinstance(p, ParticleParameter)
        and not p._backward_hooks
        and not p._post_accumulate_grad_hooks  # type: ignore[attr-defined]
    ]


def descents_of(optimizer: torch.optim.Optimizer, losses: Tensor) -> list[Descent]:
    """The plain steps that may be taken where the gradient of these losses is known."""
    if not is_plain_descent(optimizer):
        return []
    rates = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            rates[parameter] = group["lr"]
    return [Descent(p, rates[p]) for p in used_once(losses) if p in rates]


def is_plain_descent(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer.step()` computes x <- x - lr g and nobody else listens to it."""
    if type(optimizer) is not torch.optim.SGD:
        return False
    listeners = (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    )
    step = getattr(optimizer.step, "__func__", optimizer.step)
    if listeners or inspect.unwrap(step) is not PLAIN_STEP:
        return False
    options = "momentum", "weight_decay", "maximize", "differentiable"
    for group in optimizer.param_groups:
        for option in options:
            if group[option]:
                return False
    return True


@contextmanager
def descending(descents: Sequence[Descent]) -> Iterator[None]:
    """A backward pass inside takes these steps; a later forward pass inside knows their layers."""
    for descent in descents:
        descent.parameter.descent = descent
    try:
        yield
    finally:
        for descent in descents:
            descent.parameter.descent = None
