"""N linear layers as one batched product, and weight gradients that are never multiplied out.

The gradient of a linear layer's weight over a batch is a product of two thin factors,
dW = delta^T a with delta `[B, O]` and a `[B, I]`. For plain gradient descent there is no need to
write it down: W <- W - sigma^2 delta^T a is one product accumulated into W. That saves three
passes over all the parameters of all particles, which is most of the memory traffic of a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class FactoredUpdate:
    """The coming gradient-descent step of Linear weights, held as factors until it is decided.

    Life of one step: `record` (called by the backward pass) collects the factors of each weight;
    `scale` turns them into a displacement -sigma^2 delta^T a; while it is pending, forward passes
    see W + displacement without W being touched; `commit` adds it to W, for the particles that
    survived the step only. So a particle whose loss turns out not to be finite has never moved.
    """

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.weights = {id(weight): weight for weight in weights}
        self.factors: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.pending = False

    def clear(self) -> None:
        self.factors.clear()
        self.pending = False

    def records(self, weight: Tensor) -> bool:
        return id(weight) in self.weights and not self.pending

    def record(self, weight: Tensor, delta: Tensor, inputs: Tensor) -> None:
        """Note dW += delta^T inputs; delta `[N, B, O]`, inputs `[N, B, I]` (maybe expanded)."""
        factors = delta.to(weight.dtype), inputs.to(weight.dtype)
        self.factors.setdefault(id(weight), []).append(factors)

    def bound(self) -> Tensor | None:
        """A bound on each particle's largest |dW| entry: `[N]`. Finite means dW is finite."""
        bounds = [
            delta.abs().amax((1, 2)) * inputs.abs().amax((1, 2)) * delta.shape[1]
            for factors in self.factors.values()
            for delta, inputs in factors
        ]
        return torch.stack(bounds).amax(0) if bounds else None

    def squared_norms(self) -> Tensor | None:
        """Each particle's |dW|^2 over all weights, by Gram matrices: `[N]`."""
        totals = []
        for factors in self.factors.values():
            delta = torch.cat([d for d, _ in factors], dim=1)
            inputs = torch.cat([a for _, a in factors], dim=1)
            gram = torch.bmm(delta, delta.mT) * torch.bmm(inputs, inputs.mT)
            totals.append(gram.sum((1, 2)))
        return torch.stack(totals).sum(0) if totals else None

    def scale(self, scales: dict[int, Tensor]) -> None:
        """Turn gradients into displacements; `scales[id(weight)]` is `[N]`, e.g. -sigma^2."""
        for key, factors in self.factors.items():
            scale = scales[key].view(-1, 1, 1)
            self.factors[key] = [_masked(scale, delta, inputs) for delta, inputs in factors]
        self.pending = True

    def displacement(self, weight: Tensor, inputs: Tensor) -> Tensor | None:
        """What the pending step adds to `inputs W^T`: `[N, B, O]`."""
        if not self.pending or id(weight) not in self.factors:
            return None
        return sum_of(
            [torch.bmm(torch.bmm(inputs, a.mT), delta) for delta, a in self.factors[id(weight)]]
        )

    @torch.no_grad()
    def commit(self, alive: Tensor) -> None:
        """W += displacement for the particles of `alive` `[N]`."""
        keep = alive.view(-1, 1, 1)
        for key, factors in self.factors.items():
            for delta, inputs in factors:
                delta = torch.where(keep, delta, 0.0)
                self.weights[key].baddbmm_(delta.mT, inputs)
        self.clear()


def _masked(scale: Tensor, delta: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Scale delta; where the scale is 0 both factors are 0, whatever (NaN, say) they were."""
    moves = scale != 0
    if inputs.stride(0) == 0:  # shared inputs are the data itself: finite, or no particle moves
        return torch.where(moves, scale * delta, 0.0), inputs.nan_to_num(0.0, 0.0, 0.0)
    return torch.where(moves, scale * delta, 0.0), torch.where(moves, inputs, 0.0)


def sum_of(tensors: list[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


class BatchedLinear(torch.autograd.Function):
    """y_n = x_n W_n^T + b_n. x `[N, B, I]`, weight `[N, O, I]`, bias `[N, O]` or None.

    Written out because autograd's own backward of `baddbmm(b, x, W^T)` yields dW transposed in
    memory, and adding that to W costs more than computing it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, update: FactoredUpdate | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.update = update
        transposed = weight.mT.to(x.dtype)
        if bias is None:
            y = torch.bmm(x, transposed)
        else:
            y = torch.baddbmm(bias.unsqueeze(1).to(x.dtype), x, transposed)
        displacement = None if update is None else update.displacement(weight, x)
        return y if displacement is None else y + displacement.to(y.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (delta,) = grads
        x, weight = ctx.saved_tensors
        update: FactoredUpdate | None = ctx.update
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.bmm(delta, weight.to(delta.dtype))
        if ctx.needs_input_grad[1]:
            if update is not None and update.records(weight):
                update.record(weight, delta, x)
            else:
                grad_weight = torch.bmm(delta.mT, x).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = delta.sum(1).to(weight.dtype)
        return grad_x, grad_weight, grad_bias, None


def batched_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, update: FactoredUpdate | None
) -> Tensor:
    """`F.linear` for N networks: x `[N, ..., I]` to `[N, ..., O]`."""
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    y = BatchedLinear.apply(flat, weight, bias, update)
    return y.reshape(*x.shape[:-1], weight.shape[1])
