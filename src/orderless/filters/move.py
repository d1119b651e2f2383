"""How a gradient step is carried out so that it can still be taken back for single particles.

Two ways with one protocol: `Descent` for plain SGD, which need not write a Linear weight's gradient
down, and `Move` for any torch optimizer. A step calls, in this order, `backward`, `gathered`,
`bound` / `squared_norms`, `take`, (`along_gradient`), `settle`; and `undo` instead of `settle` if
anything fails on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..particles.linear import FactoredUpdate
from ..particles.parameter import inner_products, per_particle_view, squared_norms
from ..particles.rules import ParameterReads
from .step import Step

if TYPE_CHECKING:
    from .gradient import GradientFilter


class Move:
    """`optimizer.step()`; the step holds parameters and optimizer state to go back to."""

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
        """Around whatever computes losses."""
        return nullcontext()

    def backward(self, losses: Tensor, retain_graph: bool = False) -> None:
        """Accumulate the gradients of N losses `[N]`."""
        losses.backward(torch.ones_like(losses), retain_graph=retain_graph)

    def keep_gradients(self) -> None:
        """Gradients as they are now: the move may clip them, a penalty add to them."""
        self._kept = [(p, p.grad.clone()) for p in self.moving() if p.grad is not None]

    def gathered(self) -> None:
        """Called when the last gradient is there."""
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
        # State that this first step created was zero before it.
        self.step.held += [(tensor, torch.zeros_like(tensor)) for tensor in new]
        pull(self.optimizer, self.quadratics)

    def _moved(self) -> list[nn.Parameter]:
        """The parameters that change: those with a gradient; with a closed penalty, all."""
        groups = self.optimizer.param_groups if self.quadratics else ()
        return [p for group in groups for p in group["params"]] or self.moving()

    def _states(self) -> list[Tensor]:
        """Optimizer state: of particles, `[N, ...]`, or shared by them, such as step counts."""
        states = self.optimizer.state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    @torch.no_grad()
    def along_gradient(self) -> Tensor:
        """<g, x_new - x_old> per particle `[N]`, from the displacement that really happened."""
        old = {id(tensor): before for tensor, before in self.step.held}
        displacements = [p.detach() - old[id(p)] for p, _ in self._kept]
        return inner_products([g for _, g in self._kept], displacements)

    def check(self) -> None:
        """Refuse to settle what cannot be settled."""

    def settle(self, alive: Tensor) -> None:
        """The step is decided: write what is still pending, for those `alive` `[N]` here."""

    def undo(self) -> None:
        """The step failed: put back the optimizer's state; what was held is back already."""
        self.optimizer.state.clear()
        self.optimizer.state.update(self._state)


class Descent(Move):
    """x <- x - sigma^2 g for plain SGD; Linear layers move by the factors of their gradient."""

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
        """Add the squared norms of the gradients that were written down after all."""
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
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # or schedulers complain

    def check(self) -> None:
        for step in self.update.steps:
            step.factors()

    def settle(self, alive: Tensor) -> None:
        self.update.commit(alive)

    def undo(self) -> None:
        super().undo()
        self.update.clear()


def choose_move(
    step: Step, owner: GradientFilter, quadratics: Sequence[QuadraticPenalty] = ()
) -> Move:
    """Factors for plain descent where nobody else wants to see the gradient; else the optimizer.

    One particle goes through `torch.optim.SGD` itself, so that N = 1 is SGD bit for bit.
    """
    particles, optimizer, reads = owner.particles, owner.optimizer, owner.weighting.reads
    watched = any(getattr(hooks, "reads_gradients", True) for hooks in owner.consolidations)
    whole = particles.chunk_size is None or particles.chunk_size >= particles.n
    able = particles.fast and particles.n > 1 and whole
    if reads == "slope" or watched or quadratics or not able or not plain_descent(optimizer):
        return Move(step, optimizer, reads == "slope", quadratics)
    # how often the step compares the rows of a layer with each other
    return Descent(step, optimizer, (reads == "energy_after") + (owner.max_grad_norm is not None))


def plain_descent(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer does x <- x - lr g and nothing more."""
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


# ---------------------------------------------------------------------- penalties


class UpdateHooks(Protocol):
    """What `register` takes: called around `optimizer.step()` while gradients are set."""

    def before_update(self) -> None: ...
    def after_update(self) -> None: ...


@runtime_checkable
class QuadraticPenalty(UpdateHooks, Protocol):
    """A penalty 1/2 sum c (x - m)^2, whose step is closed; see `consolidation.base`.

    `anchor(parameter)` is (c, m) or None, once it `holds` anything. `closed` is True while a step
    is taken that applies it.
    """

    closed: bool

    @property
    def holds(self) -> bool: ...
    def anchor(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor] | None: ...


def check_closed(consolidation: UpdateHooks, optimizer: torch.optim.Optimizer) -> None:
    """Raise `ValueError` where no closed step is known."""
    if not isinstance(consolidation, QuadraticPenalty):
        raise ValueError(f"a {type(consolidation).__name__} has no closed step: closed=None")
    if not isinstance(optimizer, torch.optim.SGD | torch.optim.Adam):  # AdamW is an Adam
        kind = type(optimizer).__name__
        raise ValueError(f"closed steps are known for SGD and Adam, not for {kind}: closed=False")


def closes_by_default(optimizer: torch.optim.Optimizer) -> bool:
    """Whether penalties take closed steps unless told otherwise: the metric is the rate alone."""
    ascends = any(group.get("maximize") for group in optimizer.param_groups)
    return type(optimizer) is torch.optim.SGD and not ascends


def metric(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: nn.Parameter
) -> Tensor | float | None:
    """sigma^2 of the step just taken, how far a unit of gradient moves a parameter in the end.

    SGD's lr, with momentum lr / (1 - momentum), so that steps still end where loss + penalty is
    smallest; Adam's lr / (sqrt(v) + eps). None: this parameter has not moved yet.
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
    """After the optimizer's own step, take in each penalty as a Gaussian measurement.

    x <- x + k (m - x),   k = sigma^2 c / (1 + sigma^2 c),   sigma^2 <- (1 - k) sigma^2
    """
    for group in optimizer.param_groups if quadratics else ():
        for parameter in group["params"]:
            variance = metric(optimizer, group, parameter)
            for quadratic in quadratics:
                anchor = quadratic.anchor(parameter)
                if anchor is not None and variance is not None:
                    curvature, center = anchor
                    gain = 1 / (1 + 1 / (variance * curvature))  # also where c is 0 or overflows
                    parameter.lerp_(center, gain)
                    variance = variance * (1 - gain)
