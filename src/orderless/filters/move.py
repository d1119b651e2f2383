"""Gradient steps that can be undone for single particles.

Two classes with one protocol: `Descent` for plain SGD, which does not form the gradients of Linear
weights, and `Move` for any torch optimizer. A step calls, in this order, `backward`, `gathered`,
`bound` or `squared_norms`, `take`, (`along_gradient`), `writes`; after an error `undo` instead of
`writes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..ensemble.linear import FactoredUpdate, Write
from ..ensemble.parameter import inner_products, per_particle_view, squared_norms
from ..ensemble.rules import ParameterReads
from .step import Step

if TYPE_CHECKING:
    from .gradient import GradientFilter


class Move:
    """`optimizer.step()`; the `Step` saves parameters and optimizer state before."""

    update: FactoredUpdate | None = None

    def __init__(
        self,
        step: Step,
        optimizer: torch.optim.Optimizer,
        slopes: bool = False,
        quadratics: Sequence[QuadraticPenalty] = (),
    ) -> None:
        self.step, self.optimizer, self.slopes = step, optimizer, slopes
        self.quadratics = quadratics
        self._kept: list[tuple[nn.Parameter, Tensor]] = []
        self._state = {p: dict(state) for p, state in optimizer.state.items()}
        optimizer.zero_grad(set_to_none=True)

    def watching(self) -> AbstractContextManager[Any]:
        """A context around every evaluation of losses."""
        return nullcontext()

    def backward(self, losses: Tensor, retain_graph: bool = False) -> None:
        """Accumulate the gradients of N losses `[N]`."""
        losses.backward(torch.ones_like(losses), retain_graph=retain_graph)

    def keep_gradients(self) -> None:
        """Copy the present gradients: clipping or a penalty may change them later."""
        self._kept = [(p, p.grad.clone()) for p in self.moving() if p.grad is not None]

    def gathered(self) -> None:
        """Called after the last `backward`."""
        if not self.moving():
            raise ValueError(
                "the losses do not depend on any parameter that the optimizer holds: "
                "compute them from particles(x)"
            )

    def moving(self) -> list[nn.Parameter]:
        """The optimizer's parameters that have a gradient."""
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.grad is not None]

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.moving() if p.grad is not None]

    def squared_norms(self) -> Tensor:
        """Each particle's |g|^2: `[N]`."""
        return squared_norms(self.gradients())

    def bound(self) -> Tensor:
        """A number per particle that is finite only if its gradient is: `[N]`."""
        return self.squared_norms()

    @torch.no_grad()
    def take(self, clip: Tensor | None) -> None:
        """Take the step, each particle's gradient multiplied by `clip` `[N]`."""
        self.step.hold(*self._moved(), *self._states())
        if clip is not None:
            for gradient in self.gradients():
                gradient.mul_(per_particle_view(clip.to(gradient.dtype), gradient))
        known = {id(tensor) for tensor, _ in self.step.held}
        self.optimizer.step()
        new = [tensor for tensor in self._states() if id(tensor) not in known]
        # optimizer state that this step created counts as zero before it
        self.step.held += [(tensor, torch.zeros_like(tensor)) for tensor in new]
        pull(self.optimizer, self.quadratics)

    def _moved(self) -> list[nn.Parameter]:
        """The parameters that change: those with a gradient, or all with a closed penalty."""
        groups = self.optimizer.param_groups if self.quadratics else ()
        return [p for group in groups for p in group["params"]] or self.moving()

    def _states(self) -> list[Tensor]:
        """Tensors of the optimizer's state: per particle `[N, ...]`, or shared (step counts)."""
        states = self.optimizer.state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    @torch.no_grad()
    def along_gradient(self) -> Tensor:
        """<g, x_new - x_old> per particle `[N]`, for the actual displacement."""
        old = {id(tensor): before for tensor, before in self.step.held}
        displacements = [p.detach() - old[id(p)] for p, _ in self._kept]
        return inner_products([g for _, g in self._kept], displacements)

    def check(self) -> None:
        """Raise if the step cannot be settled."""

    def writes(self, alive: Tensor) -> list[Write]:
        """The pending changes of this rank's particles that are `alive`; see `Step.settle`."""
        return []

    def undo(self) -> None:
        """Restore the optimizer's state; the `Step` has restored its tensors already."""
        self.optimizer.state.clear()
        self.optimizer.state.update(self._state)


class Descent(Move):
    """x <- x - sigma^2 g for plain SGD; Linear layers are updated by factors of the gradient."""

    update: FactoredUpdate

    def __init__(self, step: Step, optimizer: torch.optim.Optimizer, overlaps: int) -> None:
        super().__init__(step, optimizer)
        self.update = FactoredUpdate(optimizer.param_groups, overlaps)

    def watching(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.update.pending else ParameterReads(self.update)

    def backward(self, losses: Tensor, retain_graph: bool = False) -> None:
        self.update.recording = True
        try:
            super().backward(losses, retain_graph)
        finally:
            self.update.recording = False

    def gathered(self) -> None:
        self.update.write_out_mixed()
        if not self.update.steps:
            super().gathered()

    def squared_norms(self) -> Tensor:
        return self._with_dense(self.update.squared_norms())

    def bound(self) -> Tensor:
        return self._with_dense(self.update.bound())

    def _with_dense(self, factored: Tensor | None) -> Tensor:
        """Add the squared norms of the gradients that exist as tensors."""
        dense = squared_norms(self.gradients()) if self.gradients() else None
        if factored is None or dense is None:
            return dense if factored is None else factored  # type: ignore[return-value]
        return factored + dense

    @torch.no_grad()
    def take(self, clip: Tensor | None) -> None:
        scales: dict[int, Tensor | float] = {}
        for group in self.optimizer.param_groups:
            scale = -group["lr"] if clip is None else -clip * group["lr"]
            scales |= dict.fromkeys(map(id, group["params"]), scale)
        self.step.hold(*self.moving())
        for parameter, gradient in zip(self.moving(), self.gradients(), strict=True):
            scale = scales[id(parameter)]
            if clip is not None:
                scale = per_particle_view(scale, parameter).to(parameter.dtype)  # type: ignore[arg-type]
            parameter.add_(scale * gradient)
        self.update.scale(scales)
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # or schedulers warn

    def check(self) -> None:
        for step in self.update.steps:
            step.factors()

    def writes(self, alive: Tensor) -> list[Write]:
        return self.update.writes(alive)

    def undo(self) -> None:
        super().undo()
        self.update.clear()


def choose_move(
    step: Step, owner: GradientFilter, quadratics: Sequence[QuadraticPenalty] = ()
) -> Move:
    """`Descent` for plain SGD if nothing else reads the gradient, else `Move`.

    A single particle uses `torch.optim.SGD` itself, so that N = 1 is SGD bit for bit.
    """
    particles, optimizer, reads = owner.particles, owner.optimizer, owner.weighting.reads
    watched = any(getattr(hooks, "reads_gradients", True) for hooks in owner.consolidations)
    whole = particles.chunk_size is None or particles.chunk_size >= particles.n
    able = particles.fast and particles.n > 1 and whole
    if reads == "slope" or watched or quadratics or not able or not plain_descent(optimizer):
        return Move(step, optimizer, reads == "slope", quadratics)
    # the number of times that the step compares the rows of a layer with each other
    return Descent(step, optimizer, (reads == "energy_after") + (owner.max_grad_norm is not None))


def plain_descent(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer computes x <- x - lr g and nothing else."""
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return (
        type(optimizer) is torch.optim.SGD
        and not hooked
        and all(
            not group[option]
            for group in optimizer.param_groups
            for option in ("momentum", "weight_decay", "maximize", "differentiable")
        )
    )


class UpdateHooks(Protocol):
    """The argument of `register`: called around `optimizer.step()` while gradients are set."""

    def before_update(self) -> None: ...
    def after_update(self) -> None: ...


@runtime_checkable
class QuadraticPenalty(UpdateHooks, Protocol):
    """A penalty 1/2 sum c (x - m)^2, whose step has a closed form; see `consolidation.base`.

    `anchor(parameter)` is (c, m) or None. `holds` is False while there is nothing to penalise.
    `closed` is True during a step that applies the penalty itself.
    """

    closed: bool

    @property
    def holds(self) -> bool: ...
    def anchor(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor] | None: ...


def takes_closed_steps(
    consolidation: UpdateHooks, optimizer: torch.optim.Optimizer, closed: bool | None
) -> bool:
    """Whether steps apply a penalty in closed form; by default with SGD, whose metric is the rate.

    Raises `ValueError` if `closed` is True and no closed form is known.
    """
    quadratic = isinstance(consolidation, QuadraticPenalty)
    if closed is None:
        ascends = any(group.get("maximize") for group in optimizer.param_groups)
        return quadratic and type(optimizer) is torch.optim.SGD and not ascends
    if closed and not quadratic:
        raise ValueError(f"a {type(consolidation).__name__} has no closed step: closed=None")
    if closed and not isinstance(optimizer, torch.optim.SGD | torch.optim.Adam):  # or AdamW
        kind = type(optimizer).__name__
        raise ValueError(f"closed steps are known for SGD and Adam, not for {kind}: closed=False")
    return closed


def metric(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: nn.Parameter
) -> Tensor | float | None:
    """sigma^2 of the last step: how far a unit of gradient moves a parameter in the long run.

    SGD's lr, with momentum lr / (1 - momentum), so that steps converge to the minimum of loss +
    penalty; Adam's lr / (sqrt(v) + eps). None if the parameter has not moved yet.
    """
    rate: Tensor | float = group["lr"]
    if isinstance(optimizer, torch.optim.SGD):
        momentum = group["momentum"]
        return rate * (1 - group["dampening"]) / (1 - momentum) if momentum else rate
    state = optimizer.state.get(parameter)
    if not state:
        return None
    second = state.get("max_exp_avg_sq", state["exp_avg_sq"])
    bias = 1 - group["betas"][1] ** state["step"].to(second.device, torch.float64)
    return rate / ((second / bias).sqrt() + group["eps"])


def pull(optimizer: torch.optim.Optimizer, quadratics: Sequence[QuadraticPenalty]) -> None:
    """Apply each penalty as a Gaussian measurement, after the optimizer's own step.

    x <- x + k (m - x),   k = sigma^2 c / (1 + sigma^2 c),   sigma^2 <- (1 - k) sigma^2
    """
    for group in optimizer.param_groups if quadratics else ():
        for parameter in (p for p in group["params"] if p.requires_grad):
            variance = metric(optimizer, group, parameter)
            for quadratic in quadratics:
                anchor = quadratic.anchor(parameter)
                if anchor is not None and variance is not None:
                    curvature, center = anchor
                    gain = 1 / (1 + 1 / (variance * curvature))  # also where c is 0 or overflows
                    parameter.lerp_(center, gain)
                    variance = variance * (1 - gain)
