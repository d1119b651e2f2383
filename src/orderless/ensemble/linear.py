"""N linear layers as one batched product, and weight gradients that are never multiplied out.

The gradient of a linear layer's weight over a batch is a product of two thin factors,
dW = delta^T a with delta `[B, O]` and a `[B, I]`. Plain gradient descent need not store it:
W <- W - sigma^2 delta^T a is one product accumulated into W. That saves three passes over all the
parameters of all particles, which is most of the memory traffic of a step.

A forward pass of the moved layer before W is written costs products of rows with rows, so factors
are faster only while a layer has few rows. And they are correct only if the layer alone reads its
weight and the factors do not change after the backward pass. `FactoredUpdate` keeps the gradient in
factors where it can guarantee that, and leaves it to autograd everywhere else.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from ..cuda import fused

Write = Callable[[], None]
Shown = Callable[[Tensor], Collection[int]]  # ids of parameters

# The cost of writing, measuring, copying and adding a dense gradient, in multiplications per entry
# of the weight.
DENSE_PASSES = 70
FEW_ROWS = 32  # factors are always faster for so few rows

# Functions that may be called on a weight whose step is pending: Linear layers have a rule,
# attention reaches the mode in parts, and the others do not read values.
NO_READING = {
    *(F.linear, F.multi_head_attention_forward, torch.is_floating_point, torch.is_complex),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.is_contiguous),
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "is_nested")
    ),
}


class Unchanged(NamedTuple):
    """A tensor with its version, autograd's own check for changes in place."""

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        return cls(tensor, tensor._version)

    def holds(self) -> bool:
        return self.tensor._version == self.version


@dataclass(eq=False)
class LinearStep:
    """One use of one layer in the step: dW = delta^T inputs and db = sum_b delta.

    delta `[N, B, O]`, inputs `[N, B, I]` (expanded if all particles share them): a copy, unless
    autograd made them and so protects them. If all particles share the `data`, `outputs` are the
    layer's outputs on it: evaluating the same data after the step needs the displacement only, not
    another pass over W. `cast` is W in the precision in which the layer was computed; W does not
    change until the step is decided.
    """

    weight: Tensor
    version: int  # of the weight, as it was used
    bias: Tensor | None
    delta: Tensor
    inputs: Unchanged
    data: Unchanged
    outputs: Unchanged | None
    cast: Tensor

    def factors(self) -> tuple[Tensor, Tensor]:
        """(delta, inputs); raises if the inputs have changed since the backward pass."""
        if not self.inputs.holds():
            raise RuntimeError(
                "the inputs of a Linear layer were changed in place before the step was over: "
                "change a copy instead, or make the ensemble with fast=False"
            )
        return self.delta, self.inputs.tensor

    def saw(self, x: Tensor, bias: Tensor | None) -> bool:
        """Whether x is the same, unchanged memory as the data, with the same bias."""
        data = self.data.tensor
        same = x.data_ptr() == data.data_ptr() and x.stride() == data.stride()
        return same and x.shape == data.shape and self.data.holds() and bias is self.bias

    def stands(self) -> bool:
        """Whether W has not changed since, so that `cast` and `outputs` are valid."""
        return self.weight._version == self.version


@dataclass(eq=False)
class Addition:
    """`add()` changes `target` in place, once, however often the addition is called.

    After an interrupt only the target's version tells whether it has been changed.
    """

    target: Tensor
    add: Callable[[], Any]
    version: int | None = None  # of the target, just before

    def __call__(self) -> None:
        if self.version is None:
            self.version = self.target._version
        if self.version == self.target._version:
            self.add()


class FactoredUpdate:
    """A pending gradient-descent step of Linear layers, kept as factors until it is decided.

    One step: forward passes `note` which weights and biases belong together; the backward pass adds
    the factors of each layer to `steps`; `scale` turns gradients into displacements; while they are
    pending, forward passes compute with W + dW and b + db, and W and b do not change; `writes` add
    the displacements of the particles that survived the step. So a particle whose loss turns out
    not to be finite never moves.

    Args:
        groups: the optimizer's parameter groups.
        overlaps: how often a step multiplies the rows of a layer with each other: for the second
            evaluation, and for the norm of the gradient.
    """

    def __init__(self, groups: list[dict[str, Any]], overlaps: int) -> None:
        self.overlaps = overlaps
        self.group = {id(p): number for number, g in enumerate(groups) for p in g["params"]}
        self.memory: dict[int, list[int]] = {}  # ids of parameters, by memory address
        for p in (p for g in groups for p in g["params"]):
            self.memory.setdefault(_memory(p), []).append(id(p))
        self.recording = False  # True in the filter's own backward passes, not in a closure's
        self.clear()

    def clear(self) -> None:
        self.steps: list[LinearStep] = []
        self.pending = False
        self.partners: dict[int, set[int | None]] = {}
        self.read: set[int] = set()  # parameters that are used outside of Linear layers

    def note(self, weight: Tensor, bias: Tensor | None) -> None:
        """Record that a layer uses this weight with this bias."""
        for one, other in ((weight, bias), (bias, weight)):
            if id(one) in self.group:
                partner = id(other) if id(other) in self.group else None
                self.partners.setdefault(id(one), set()).add(partner)

    def notice(self, func: Any, args: Any, kwargs: dict[str, Any], shown: Shown) -> None:
        """Record the parameters that a call reads; `shown` maps an argument to parameters."""
        for argument in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(argument, Tensor):
                if func not in NO_READING:
                    self.read.update(shown(argument))
            elif type(argument) is list or type(argument) is tuple:
                self.notice(func, argument, {}, shown)

    def sharing_memory(self, tensor: Tensor) -> list[int]:
        """The parameters that share memory with a tensor."""
        return self.memory.get(_memory(tensor), [])

    def records(self, weight: Tensor, bias: Tensor | None, rows: int, shared: bool) -> bool:
        """Whether to keep the gradient of this use of a layer in factors."""
        moves = id(weight) in self.group and not _hooked(weight) and not _hooked(bias)
        return self.recording and moves and self._pays(weight, rows, shared)

    def moves_along(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether the bias has the weight's learning rate and so can move with its factors."""
        group = self.group.get(id(bias))
        return group is not None and group == self.group.get(id(weight))

    def _pays(self, weight: Tensor, rows: int, shared: bool) -> bool:
        """Whether products of rows with rows cost less than a dense gradient."""
        if rows <= FEW_ROWS:
            return True
        _, outputs, inputs = weight.shape
        factored = self.overlaps * rows * rows * (outputs if shared else outputs + inputs)
        dense = DENSE_PASSES * outputs * inputs
        if shared:  # the second evaluation needs no product with W
            dense += rows * outputs * inputs
        return factored <= dense

    @torch.no_grad()
    def write_out_mixed(self) -> None:
        """Write the `.grad` of parameters that are also used in other ways.

        A weight that is also an embedding or part of an L2 term, or a bias of several weights, must
        have moved when it is read, but only its layer applies a pending displacement. And many uses
        of one layer have more rows together than each by itself.
        """
        rows: dict[int, int] = {}
        for step in self.steps:
            rows[id(step.weight)] = rows.get(id(step.weight), 0) + step.delta.shape[1]

        def mixed(p: Tensor | None) -> bool:
            if p is None:
                return False
            return p.grad is not None or len(self.partners[id(p)]) > 1 or id(p) in self.read

        def dense(step: LinearStep) -> bool:
            total, one = rows[id(step.weight)], step.delta.shape[1]
            many = total > one and not self._pays(step.weight, total, shared=False)
            return many or mixed(step.weight) or mixed(step.bias)

        written = [step for step in self.steps if dense(step)]
        self.steps = [step for step in self.steps if step not in written]
        for step in written:
            delta, inputs = step.factors()
            _add_gradient(step.weight, _whole_product(delta.mT, inputs))
            if step.bias is not None:
                _add_gradient(step.bias, delta.sum(1))

    def bound(self) -> Tensor | None:
        """A bound on each particle's |dW|: `[N]`. If it is finite, the gradient is finite."""
        if not self.steps:
            return None
        seen = [step.inputs.tensor for step in self.steps]
        own = [step.delta for step in self.steps] + [x for x in seen if not _shared(x)]
        norm = torch.linalg.vector_norm(torch.cat([t.flatten(1) for t in own], 1), dim=1)
        for inputs in seen:
            if _shared(inputs):
                norm = norm + torch.linalg.vector_norm(inputs[0])
        return norm.square()  # |delta| |inputs| is at most the square of their sum

    def squared_norms(self) -> Tensor | None:
        """Each particle's squared gradient norm over all layers, by Gram matrices: `[N]`."""
        layers: dict[int, list[LinearStep]] = {}
        for step in self.steps:
            layers.setdefault(id(step.weight), []).append(step)
        totals = []
        for uses in layers.values():
            delta = torch.cat([use.delta for use in uses], dim=1)
            inputs = torch.cat([use.inputs.tensor for use in uses], dim=1)
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

    def _of(self, weight: Tensor) -> list[LinearStep]:
        return [step for step in self.steps if step.weight is weight] if self.pending else []

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight in another precision, without a pending step."""
        known = (step.cast for step in self.steps if step.weight is weight and step.stands())
        return next((cast for cast in known if cast.dtype == dtype), weight).to(dtype)

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None, cast: Tensor) -> Tensor:
        """x (W + dW)^T + b + db with the pending step of this layer, if there is one."""
        steps = self._of(weight)
        known = steps[0].outputs if len(steps) == 1 and steps[0].saw(x, bias) else None
        usable = known is not None and known.holds() and steps[0].stands()
        y = known.tensor if known and usable else _product(x, cast, bias)
        for step in steps:
            delta, inputs = step.factors()
            dtype = inputs.dtype
            overlap = _overlap(_converted(x, dtype), inputs)
            if step.bias is not None and step.bias is bias:  # a bias is a weight whose input is 1
                overlap.add_(1.0)
            overlap = overlap.expand(x.shape[0], -1, -1)
            y = torch.baddbmm(y.to(dtype), overlap, delta).to(x.dtype)
        return y

    def moved(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """W + dW and b + db written out, for gradients at the moved particles."""
        new_weight, new_bias = weight, bias
        for step in self._of(weight):
            delta, inputs = step.factors()
            new_weight = new_weight + _whole_product(delta.mT, inputs)
            if new_bias is not None and step.bias is bias:
                new_bias = new_bias + delta.sum(1)
        return new_weight, new_bias

    @torch.no_grad()
    def writes(self, alive: Tensor) -> list[Write]:
        """W += dW and b += db for the particles of `alive` `[N]`, layer by layer.

        To call them all again after an interrupt completes them: nothing is copied, and no layer
        moves twice. (Not so if the interrupt falls into the few microseconds in which a fused
        kernel is launched on a GPU without a recording: its layer may then move twice.)
        """
        writes: list[Write] = []
        everyone = alive.device.type == "cpu" and bool(alive.all())
        dead = ~alive.view(-1, 1, 1)
        whole = [(step.weight, step.bias, *step.factors()) for step in self.steps]
        for weight, bias, delta, inputs in whole:
            if weight.is_cuda and fused.can_add_factors(weight, bias, delta, inputs):
                add = partial(fused.add_factors, weight, bias, delta, inputs, alive)
                writes.append(Addition(weight, add))
                continue
            if not everyone:  # 0 times NaN is NaN: both factors must go
                delta = delta.masked_fill(dead, 0.0)
                if _shared(inputs):  # the data: if it is not finite, no particle is alive
                    inputs = inputs[0].nan_to_num(0.0, 0.0, 0.0).expand_as(inputs)
                else:
                    inputs = inputs.masked_fill(dead, 0.0)
            writes.append(Addition(weight, partial(weight.baddbmm_, delta.mT, inputs)))
            if bias is not None:
                writes.append(Addition(bias, partial(bias.add_, delta.sum(1))))
        return [*writes, self.clear]


def _memory(tensor: Tensor) -> int:
    """The memory address of a tensor's storage; 0 if it has none."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _hooked(parameter: Tensor | None) -> bool:
    """Whether a hook is registered on the gradient."""
    hooks = "_backward_hooks", "_post_accumulate_grad_hooks"
    return any(getattr(parameter, name, None) for name in hooks)


def _of_autograd(x: Tensor) -> bool:
    """Whether autograd made x, so that it is no data, no parameter and no view of either."""
    base = x._base if x._is_view() else x
    return base is not None and base.grad_fn is not None


def _add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def _whole_product(left: Tensor, right: Tensor) -> Tensor:
    """`torch.bmm` in the factors' own precision, also under autocast."""
    with torch.autocast(left.device.type, enabled=False):
        return torch.bmm(left, right)


def _shared(x: Tensor) -> bool:
    """Whether an `[N, ...]` tensor is one `[...]` tensor repeated."""
    return x.stride(0) == 0 and x.shape[0] > 1


def _converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another precision; an expanded tensor stays expanded, where `to` would copy it."""
    if x.dtype == dtype:
        return x
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

    Written as a function because autograd's backward of `baddbmm(b, x, W^T)` yields dW transposed
    in memory, and adding that to W costs more than computing it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, update: FactoredUpdate | None
    ) -> Tensor:
        ctx.update, ctx.kept, ctx.lasting = update, None, _of_autograd(x)
        if update is None:
            cast = weight.to(x.dtype)
            y = _product(x, cast, bias)
        else:
            update.note(weight, bias)
            cast = update.cast(weight, x.dtype)
            y = update.apply(x, weight, bias, cast)
            if _shared(x) and x.dtype == weight.dtype:
                # not by `save_for_backward`, which would raise if y is changed in place
                ctx.kept = Unchanged.of(y.detach())
        ctx.save_for_backward(x, weight, bias, cast)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (delta,) = grads
        x, weight, bias, cast = ctx.saved_tensors
        update: FactoredUpdate | None = ctx.update
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # a second derivative, with respect to the weight itself
            cast = weight.to(cast.dtype)
        grad_x = torch.bmm(delta, cast.to(delta.dtype)) if wants_x else None
        rows, shared = delta.shape[1], ctx.kept is not None
        if wants_weight and update is not None and update.records(weight, bias, rows, shared):
            along = bias is None or (wants_bias and update.moves_along(weight, bias))
            inputs = _converted(x, weight.dtype)
            if inputs is x and not ctx.lasting:  # a user may write to x before the step is over
                inputs = x[0].clone().expand_as(x) if _shared(x) else x.clone()
            step = LinearStep(
                weight,
                weight._version,
                bias if along else None,
                delta.to(weight.dtype),
                Unchanged.of(inputs),
                Unchanged.of(x),
                ctx.kept if along else None,  # invalid where the bias moves by itself
                cast,
            )
            update.steps.append(step)
            return grad_x, None, None if along else delta.sum(1).to(weight.dtype), None
        grad_weight = torch.bmm(delta.mT, x).to(weight.dtype) if wants_weight else None
        grad_bias = delta.sum(1).to(weight.dtype) if wants_bias else None
        return grad_x, grad_weight, grad_bias, None


def batched_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, update: FactoredUpdate | None
) -> Tensor:
    """`F.linear` for N networks: x `[N, ..., I]` to `[N, ..., O]`."""
    flat = x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)
    if update is not None and update.pending and torch.is_grad_enabled():
        weight, bias = update.moved(weight, bias)
        update = None
    y = BatchedLinear.apply(flat, weight, bias, update)
    return y.unflatten(1, x.shape[1:-1]) if x.dim() > 2 else y.squeeze(1)
