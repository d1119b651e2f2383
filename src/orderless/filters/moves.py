"""How a gradient step is carried out so that it can still be taken back for single particles.

Two ways with one protocol: `Descent` for plain SGD, which never writes a Linear weight's gradient
down, and `OptimizerMove` for any torch optimizer. In a step the filter calls, in this order,
`begin`, `backward`, `gathered`, `bound` / `squared_norms`, `move`, (`along_gradient`), `settle`;
and `undo` instead of `settle` if anything fails on the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..particles.linear import FactoredUpdate
from ..particles.parameter import inner_products, per_particle_view, squared_norms


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


def _on_host(mask: Tensor) -> bool:
    """On the CPU one may look at a mask for free; on a GPU looking stalls everything."""
    return mask.device.type == "cpu"


class Move:
    """What both ways share: the parameters that have a gradient, and its size."""

    update: FactoredUpdate | None = None

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.before: list[tuple[Tensor, Tensor]] = []  # (tensor, its value before the step)

    def begin(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, losses: Tensor, retain_graph: bool = False) -> None:
        """Accumulate the gradients of N losses `[N]`."""
        losses.backward(torch.ones_like(losses), retain_graph=retain_graph)

    def gathered(self) -> None:
        """Called when the last gradient is there."""
        if not self.moving():
            raise ValueError(
                "the losses do not depend on any parameter that the optimizer holds: "
                "compute them from particles(x)"
            )

    def moving(self) -> list[nn.Parameter]:
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

    def move(self, clip: Tensor | None) -> None:
        """Take the step, each particle's gradient multiplied by `clip` `[N]`."""
        raise TypeError(f"{type(self).__name__} does not say how to move")

    @torch.no_grad()
    def settle(self, alive: Tensor, everywhere: Tensor) -> None:
        """Put back everything of particles that are not `alive`, here and on all ranks."""
        if not (_on_host(alive) and alive.all()):
            for tensor, before in self.before:
                if tensor.device == alive.device:  # Adam counts steps on the CPU, if it may
                    keep = _keep(alive, everywhere, tensor)
                    tensor.copy_(torch.where(keep, tensor, before))
        self.before = []

    @torch.no_grad()
    def undo(self) -> None:
        """Put back everything."""
        for tensor, before in self.before:
            tensor.copy_(before)
        self.before = []


def _keep(alive: Tensor, everywhere: Tensor, tensor: Tensor) -> Tensor:
    """What of a tensor may stay: its living particles, or all of a step count while any lives."""
    of_particles = tensor.shape[:1] == alive.shape
    return per_particle_view(alive, tensor) if of_particles else everywhere.any()


class OptimizerMove(Move):
    """`optimizer.step()`, with a copy of parameters and optimizer state to go back to."""

    @torch.no_grad()
    def move(self, clip: Tensor | None) -> None:
        self.state_before = {p: dict(state) for p, state in self.optimizer.state.items()}
        self.before = [(p, p.detach().clone()) for p in self.moving()]
        self.before += [(t, t.clone()) for t in self._states()]
        if clip is not None:
            for gradient in self.gradients():
                gradient.mul_(per_particle_view(clip.to(gradient.dtype), gradient))
        known = {id(tensor) for tensor, _ in self.before}
        self.optimizer.step()
        # State that this first step created was zero before it.
        self.before += [(t, torch.zeros_like(t)) for t in self._states() if id(t) not in known]

    @torch.no_grad()
    def undo(self) -> None:
        super().undo()
        self.optimizer.state.clear()
        self.optimizer.state.update(self.state_before)

    def _states(self) -> list[Tensor]:
        """Optimizer state: of particles, `[N, ...]`, or shared by them, such as step counts."""
        states = self.optimizer.state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    @torch.no_grad()
    def along_gradient(self, gradients: list[tuple[nn.Parameter, Tensor]]) -> Tensor:
        """<g, x_new - x_old> per particle `[N]`, from the displacement that really happened."""
        old = {id(tensor): before for tensor, before in self.before}
        displacements = [p.detach() - old[id(p)] for p, _ in gradients]
        return inner_products([g for _, g in gradients], displacements)


class Descent(Move):
    """x <- x - sigma^2 g for plain SGD; Linear layers move by the factors of their gradient."""

    update: FactoredUpdate

    def __init__(self, optimizer: torch.optim.Optimizer, overlaps: int) -> None:
        super().__init__(optimizer)
        self.update = FactoredUpdate(optimizer.param_groups, overlaps)

    def begin(self) -> None:
        super().begin()
        self.update.clear()

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
    def move(self, clip: Tensor | None) -> None:
        scales: dict[int, Tensor | float] = {}
        for group in self.optimizer.param_groups:
            scale = -group["lr"] if clip is None else -clip * group["lr"]
            scales |= dict.fromkeys(map(id, group["params"]), scale)
        for parameter, gradient in zip(self.moving(), self.gradients(), strict=True):
            self.before.append((parameter, parameter.detach().clone()))
            scale = scales[id(parameter)]
            if clip is not None:
                scale = per_particle_view(scale, parameter).to(parameter.dtype)  # type: ignore[arg-type]
            parameter.add_(scale * gradient)
        self.update.scale(scales)
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # or schedulers complain

    def undo(self) -> None:
        super().undo()
        self.update.clear()

    @torch.no_grad()
    def settle(self, alive: Tensor, everywhere: Tensor) -> None:
        super().settle(alive, everywhere)
        self.update.commit(alive)


def choose_move(
    optimizer: torch.optim.Optimizer, particles: Any, needs_gradients: bool, overlaps: int
) -> Move:
    """Factors for plain descent where nobody else wants to see the gradient; else the optimizer.

    `overlaps`: how often the step compares the rows of a Linear layer, see `FactoredUpdate`.

    One particle goes through `torch.optim.SGD` itself, so that N = 1 is SGD bit for bit.
    """
    whole = particles.chunk_size is None or particles.chunk_size >= particles.n
    factors = plain_descent(optimizer) and particles.fast and particles.n > 1 and whole
    if factors and not needs_gradients:
        return Descent(optimizer, overlaps)
    return OptimizerMove(optimizer)
