"""N linear layers as one batched product, and weight gradients that are never multiplied out.

The gradient of a linear layer's weight over a batch is a product of two thin factors,
dW = delta^T a with delta `[B, O]` and a `[B, I]`. For plain gradient descent there is no need to
write it down: W <- W - sigma^2 delta^T a is one product accumulated into W. That saves three
passes over all the parameters of all particles, which is most of the memory traffic of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .kernels import fused


@dataclass
class LinearStep:
    """One use of one layer in the step: dW = delta^T inputs and db = sum_b delta.

    delta `[N, B, O]`, inputs `[N, B, I]` (expanded where all particles saw the same). Where the
    inputs are the data itself, `outputs` keeps what the layer made of them: looking at the same
    data again after the step needs the displacement only, not another pass over W. `cast` is W in
    the precision the layer was computed in: W stands still until the step is decided.
    """

    weight: Tensor
    bias: Tensor | None
    delta: Tensor
    inputs: Tensor
    outputs: Tensor | None
    version: int  # of the inputs' memory when they were used
    cast: Tensor

    def saw(self, x: Tensor) -> bool:
        """Whether x is the very same, unchanged memory as the inputs were."""
        same = x.data_ptr() == self.inputs.data_ptr() and x.stride() == self.inputs.stride()
        return same and x.shape == self.inputs.shape and x._version == self.version


class FactoredUpdate:
    """The coming gradient-descent step of Linear layers, held as factors until it is decided.

    Life of one step: the backward pass calls `record` with the factors of each layer; `scale` turns
    gradients into displacements; while they are pending, forward passes see W + dW and b + db
    without W or b being touched; `commit` adds them, for the particles that survived the step
    only. So a particle whose loss turns out not to be finite has never moved.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = {id(parameter) for parameter in parameters}
        self.steps: list[LinearStep] = []
        self.recording = False  # only the filter's own backward passes count, not a closure's
        self.pending = False

    def clear(self) -> None:
        self.steps = []
        self.pending = False

    def records(self, weight: Tensor) -> bool:
        return self.recording and id(weight) in self.parameters

    def record(
        self,
        weight: Tensor,
        bias: Tensor | None,
        delta: Tensor,
        inputs: Tensor,
        outputs: Tensor | None,
        cast: Tensor,
    ) -> None:
        factors = delta.to(weight.dtype), _converted(inputs, weight.dtype)
        self.steps.append(LinearStep(weight, bias, *factors, outputs, inputs._version, cast))

    @torch.no_grad()
    def write_out_mixed(self) -> None:
        """Give parameters that are used in other ways as well their `.grad` after all.

        A weight that is also an embedding or part of an L2 term, or a bias of several weights,
        must have moved when somebody reads it: a pending displacement shows in its layer only.
        """
        partners: dict[int, set[int]] = {}
        for step in self.steps:
            partners.setdefault(id(step.weight), set()).add(id(step.bias))
            if step.bias is not None:
                partners.setdefault(id(step.bias), set()).add(id(step.weight))

        def mixed(p: Tensor | None) -> bool:
            return p is not None and (p.grad is not None or len(partners[id(p)]) > 1)

        written = [step for step in self.steps if mixed(step.weight) or mixed(step.bias)]
        self.steps = [step for step in self.steps if not any(step is other for other in written)]
        for step in written:
            _add_gradient(step.weight, _whole_product(step.delta.mT, step.inputs))
            if step.bias is not None:
                _add_gradient(step.bias, step.delta.sum(1))

    def bound(self) -> Tensor | None:
        """A bound on each particle's |dW|: `[N]`. Finite means that the gradient is finite."""
        if not self.steps:
            return None
        own = [step.delta for step in self.steps]
        own += [step.inputs for step in self.steps if not _shared(step.inputs)]
        norm = torch.linalg.vector_norm(torch.cat([t.flatten(1) for t in own], 1), dim=1)
        for step in self.steps:
            if _shared(step.inputs):
                norm = norm + torch.linalg.vector_norm(step.inputs[0])
        return norm.square()  # |delta| |inputs| is at most the square of their sum

    def squared_norms(self) -> Tensor | None:
        """Each particle's squared gradient norm over all layers, by Gram matrices: `[N]`."""
        layers: dict[int, list[LinearStep]] = {}
        for step in self.steps:
            layers.setdefault(id(step.weight), []).append(step)
        totals = []
        for uses in layers.values():
            delta = torch.cat([use.delta for use in uses], dim=1)
            inputs = torch.cat([use.inputs for use in uses], dim=1)
            gram = _whole_product(inputs, inputs.mT)
            if uses[0].bias is not None:  # a bias is a weight whose input is 1
                gram = gram + 1.0
            totals.append((_whole_product(delta, delta.mT) * gram).sum((1, 2)))
        return torch.stack(totals).sum(0) if totals else None

    def scale(self, scales: dict[int, Tensor | float]) -> None:
        """Turn gradients into displacements; `scales[id(weight)]` is -sigma^2, or `[N]` of them."""
        for step in self.steps:
            scale = scales[id(step.weight)]
            of_particles = isinstance(scale, Tensor) and scale.dim() == 1
            step.delta = step.delta * (scale.view(-1, 1, 1) if of_particles else scale)  # type: ignore[union-attr]
        self.pending = True

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight, as it is, in another precision."""
        known = (step.cast for step in self.steps if step.weight is weight)
        return next((cast for cast in known if cast.dtype == dtype), weight).to(dtype)

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None, cast: Tensor) -> Tensor:
        """x (W + dW)^T + b + db with the pending step of this layer, if there is one."""
        steps = [step for step in self.steps if step.weight is weight] if self.pending else []
        if len(steps) == 1 and steps[0].outputs is not None and steps[0].saw(x):
            y = steps[0].outputs
        else:
            y = _product(x, cast, bias)
        for step in steps:
            dtype = step.inputs.dtype
            overlap = _overlap(_converted(x, dtype), step.inputs)
            if step.bias is not None:  # a bias is a weight whose input is 1
                overlap.add_(1.0)
            overlap = overlap.expand(x.shape[0], -1, -1)
            y = torch.baddbmm(y.to(dtype), overlap, step.delta).to(x.dtype)
        return y

    @torch.no_grad()
    def commit(self, alive: Tensor) -> None:
        """W += dW and b += db for the particles of `alive` `[N]`."""
        everyone = alive.device.type == "cpu" and bool(alive.all())
        dead = ~alive.view(-1, 1, 1)
        for step in self.steps:
            delta, inputs = step.delta, step.inputs
            if fused.can_add_factors(step.weight, step.bias, delta, inputs):
                fused.add_factors(step.weight, step.bias, delta, inputs, alive)
                continue
            if not everyone:  # 0 times NaN is NaN: both factors must go
                delta = delta.masked_fill(dead, 0.0)
                if _shared(inputs):  # the data itself: if not finite, nobody is alive
                    inputs = inputs[0].nan_to_num(0.0, 0.0, 0.0).expand_as(inputs)
                else:
                    inputs = inputs.masked_fill(dead, 0.0)
            step.weight.baddbmm_(delta.mT, inputs)
            if step.bias is not None:
                step.bias.add_(delta.sum(1))
        self.clear()


def _add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def _whole_product(left: Tensor, right: Tensor) -> Tensor:
    """`torch.bmm` in the factors' own precision, also where autocast would reduce them."""
    with torch.autocast(left.device.type, enabled=False):
        return torch.bmm(left, right)


def _shared(x: Tensor) -> bool:
    """Whether an `[N, ...]` tensor is one `[...]` tensor repeated."""
    return x.stride(0) == 0 and x.shape[0] > 1


def _converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """In another precision; what is one tensor repeated stays so, where `to` would write it out."""
    return x[0].to(dtype).expand_as(x) if _shared(x) else x.to(dtype)


def _overlap(x: Tensor, inputs: Tensor) -> Tensor:
    """Inner products of new and old inputs: `[N, B, B']`, or `[1, B, B']` where all share both."""
    if _shared(x) and _shared(inputs):
        return torch.mm(x[0], inputs[0].mT).unsqueeze(0)
    return torch.bmm(x, inputs.mT)


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

    Written out because autograd's own backward of `baddbmm(b, x, W^T)` yields dW transposed in
    memory, and adding that to W costs more than computing it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, update: FactoredUpdate | None
    ) -> Tensor:
        ctx.update = update
        if update is None:
            cast, kept = weight.to(x.dtype), None
            y = _product(x, cast, bias)
        else:
            cast = update.cast(weight, x.dtype)
            y = update.apply(x, weight, bias, cast)
            kept = y if _shared(x) and x.dtype == weight.dtype else None
        ctx.save_for_backward(x, weight, bias, cast, kept)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (delta,) = grads
        x, weight, bias, cast, outputs = ctx.saved_tensors
        update: FactoredUpdate | None = ctx.update
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # somebody wants the second derivative, by the weight itself
            cast = weight.to(cast.dtype)
        grad_x = torch.bmm(delta, cast.to(delta.dtype)) if wants_x else None
        if wants_weight and update is not None and update.records(weight):
            factored = bias is None or (wants_bias and update.records(bias))
            outputs = outputs if factored else None  # a bias that moves by itself spoils them
            update.record(weight, bias if factored else None, delta, x, outputs, cast)
            grad_bias = None if factored else delta.sum(1).to(weight.dtype)
            return grad_x, None, grad_bias, None
        grad_weight = torch.bmm(delta.mT, x).to(weight.dtype) if wants_weight else None
        grad_bias = delta.sum(1).to(weight.dtype) if wants_bias else None
        return grad_x, grad_weight, grad_bias, None


def batched_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, update: FactoredUpdate | None
) -> Tensor:
    """`F.linear` for N networks: x `[N, ..., I]` to `[N, ..., O]`."""
    flat = x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)
    y = BatchedLinear.apply(flat, weight, bias, update)
    return y.unflatten(1, x.shape[1:-1]) if x.dim() > 2 else y.squeeze(1)
