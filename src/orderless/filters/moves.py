"""How a gradient step is carried out so that it can still be taken back for single particles.

Two ways with one protocol: `Descent` for plain SGD, which never writes a Linear weight's gradient
down, and `OptimizerMove` for any torch optimizer. In a step the filter calls, in this order,
`begin`, (backward passes), `finite` / `squared_norms`, `move`, (`along_gradient`), `settle`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..particles.linear import FactoredUpdate
from ..particles.parameter import inner_products, per_particle_view, squared_norms


def plain_descent(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer does x <- x - lr g and nothing more."""
    return type(optimizer) is torch.optim.SGD and all(
        not group[option]
        for group in optimizer.param_groups
        for option in ("momentum", "weight_decay", "maximize", "differentiable")
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

    def moving(self) -> list[nn.Parameter]:
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.grad is not None]

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.moving() if p.grad is not None]

    def squared_norms(self) -> Tensor:
        """Each particle's |g|^2: `[N]`."""
        return squared_norms(self.gradients())

    def finite(self) -> Tensor:
        """Which particles have a finite gradient: `[N]`."""
        return squared_norms(self.gradients()).isfinite()

    @torch.no_grad()
    def settle(self, alive: Tensor) -> None:
        """Put back everything of particles that are not `alive` `[N]`."""
        if not (_on_host(alive) and alive.all()):
            for tensor, before in self.before:
                keep = per_particle_view(alive, tensor)
                tensor.copy_(torch.where(keep, tensor, before))
        self.before = []


class OptimizerMove(Move):
    """`optimizer.step()`, with a copy of parameters and optimizer state to go back to."""

    @torch.no_grad()
    def move(self, clip: Tensor | None, alive: Tensor) -> None:
        if clip is not None:
            for gradient in self.gradients():
                gradient.mul_(per_particle_view(clip.to(gradient.dtype), gradient))
        parameters = self.moving()
        self.before = [(p, p.detach().clone()) for p in parameters]
        self.before += [(t, t.clone()) for t in self._states(parameters)]
        known = {id(tensor) for tensor, _ in self.before}
        self.optimizer.step()
        # State that this first step created was zero before it.
        self.before += [
            (t, torch.zeros_like(t)) for t in self._states(parameters) if id(t) not in known
        ]

    def _states(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        """Optimizer state with a particle axis; scalars such as step counts are shared."""
        return [
            value
            for p in parameters
            for value in self.optimizer.state[p].values()
            if isinstance(value, Tensor) and value.shape == p.shape
        ]

    @torch.no_grad()
    def along_gradient(self, gradients: list[Tensor]) -> Tensor:
        """<g, x_new - x_old> per particle `[N]`, from the displacement that really happened."""
        old = {id(tensor): before for tensor, before in self.before}
        displacements = [p.detach() - old[id(p)] for p in self.moving()]
        return inner_products(gradients, displacements)


class Descent(Move):
    """x <- x - sigma^2 g for plain SGD; Linear weights move by the factors of their gradient."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.update = FactoredUpdate([p for p in parameters if p.dim() == 3])

    def begin(self) -> None:
        super().begin()
        assert self.update is not None
        self.update.clear()

    def squared_norms(self) -> Tensor:
        assert self.update is not None
        parts = [self.update.squared_norms()]
        parts += [squared_norms(self.gradients())] if self.gradients() else []
        return torch.stack([part for part in parts if part is not None]).sum(0)

    def finite(self) -> Tensor:
        assert self.update is not None
        parts = [self.update.bound()]
        parts += [squared_norms(self.gradients())] if self.gradients() else []
        return torch.stack([part for part in parts if part is not None]).sum(0).isfinite()

    @torch.no_grad()
    def move(self, clip: Tensor | None, alive: Tensor) -> None:
        assert self.update is not None
        scales: dict[int, Tensor] = {}
        share = alive.to(torch.float32) if clip is None else torch.where(alive, clip, 0.0)
        for group in self.optimizer.param_groups:
            rate = -share * group["lr"]
            scales |= {id(p): rate.to(p.dtype) for p in group["params"]}
        self.before = []
        for parameter in self.moving():
            self.before.append((parameter, parameter.detach().clone()))
            scale = per_particle_view(scales[id(parameter)], parameter)
            parameter.add_(torch.where(scale != 0, scale * parameter.grad, 0.0))  # type: ignore[operator]
        self.scales = scales
        self.update.scale(scales)

    @torch.no_grad()
    def settle(self, alive: Tensor) -> None:
        assert self.update is not None
        super().settle(alive)
        self.update.commit(alive)


def choose_move(optimizer: torch.optim.Optimizer, particles: Any, needs_gradients: bool) -> Move:
    """Factors for plain descent where nobody else wants to see the gradient; else the optimizer.

    One particle goes through `torch.optim.SGD` itself, so that N = 1 is SGD bit for bit.
    """
    whole = particles.chunk_size is None or particles.chunk_size >= particles.n
    factors = plain_descent(optimizer) and particles.fast and particles.n > 1 and whole
    return Descent(optimizer) if factors and not needs_gradients else OptimizerMove(optimizer)
