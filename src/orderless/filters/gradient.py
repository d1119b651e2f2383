"""Filters that move particles along their gradients: x <- x - sigma^2 grad L."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..particles import Ensemble
from .base import Link
from .moves import choose_move
from .stepping import Closure, StepInfo, SteppedFilter
from .weights import effective_sample_size


class Consolidation(Protocol):
    """What `register` takes: called around `optimizer.step()` while gradients are set."""

    def before_update(self) -> None: ...
    def after_update(self) -> None: ...


class GradientFilter(SteppedFilter):
    """One step: losses and gradients, a move, and (in subclasses) new weights.

    The gradient sees loss + penalty; the weights see the loss only, unless `weigh_penalty`: a
    penalty stands for past data, and in the weights it would count that past at every step again.

    A particle whose loss or gradient is not finite dies: weight 0, and its parameters, buffers and
    optimizer state stay as they were before the step. The others go on.
    """

    evaluates_twice = False
    linearizes = False

    def __init__(
        self,
        particles: Ensemble,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float | None = None,
        weigh_penalty: bool = False,
        link: Link = "softmax",
        min_ess: float | None = None,
        check_every: int = 100,
    ) -> None:
        super().__init__(particles, link=link, min_ess=min_ess, check_every=check_every)
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive, got {max_grad_norm}")
        ours = {id(p) for p in particles.parameters()}
        theirs = [p for group in optimizer.param_groups for p in group["params"]]
        if not any(id(p) in ours for p in theirs):
            raise ValueError(
                "the optimizer holds none of the particles' parameters: "
                "build it from particles.parameters()"
            )
        self.optimizer, self.max_grad_norm = optimizer, max_grad_norm
        self.weigh_penalty = weigh_penalty
        self.consolidations: list[Consolidation] = []

    def register(self, consolidation: Consolidation) -> None:
        """Have `before_update()` and `after_update()` called around every optimizer step."""
        self.consolidations.append(consolidation)

    # ------------------------------------------------------------------ one step

    def _advance(self, closures: Sequence[Closure], penalty: Closure | None) -> StepInfo:
        needs_gradients = bool(self.consolidations) or self.linearizes
        move = choose_move(self.optimizer, self.particles, needs_gradients)
        buffers = self.particles.particle_buffers()
        old_buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        draw, noise = self.particles._draws.clone(), self._noise()

        with self._nothing_half_done(), self._precision(), self.particles.factoring(move.update):
            move.begin()
            losses, penalties, loss_gradients = self._backward(closures, penalty, move)
            alive = self.alive & losses.isfinite() & move.finite()
            if penalties is not None:
                alive = alive & penalties.isfinite()
            if alive.device.type == "cpu" and not alive.any():
                self._failed.fill_(True)
                self.check(now=True)

            clip = None
            if self.max_grad_norm is not None:
                norms = move.squared_norms().sqrt()
                clip = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
            for consolidation in self.consolidations:
                consolidation.before_update()
            move.move(clip, alive)
            for consolidation in self.consolidations:
                consolidation.after_update()

            again = None
            if self.evaluates_twice:
                try:
                    again = self._losses_again(closures, draw, noise)
                    if penalties is not None and self.weigh_penalty:
                        again = again + self._losses_again([penalty], draw, noise)  # type: ignore[list-item]
                except BaseException:
                    move.settle(torch.zeros_like(alive))
                    raise
            weighed = losses
            if penalties is not None and self.weigh_penalty:
                weighed = losses + penalties
            slope = move.along_gradient(loss_gradients) if loss_gradients is not None else None  # type: ignore[attr-defined]
            alive = self._weigh(weighed, again, slope, alive)
            move.settle(alive & self.alive)

        with torch.no_grad():
            for name, buffer in buffers.items():
                keep = alive.view(-1, *[1] * (buffer.dim() - 1))
                buffer.copy_(torch.where(keep, buffer, old_buffers[name]))
        ess = effective_sample_size(self.raw_log_weights)
        return StepInfo(losses, again, penalties, self.alive.clone(), ess)

    def _backward(
        self, closures: Sequence[Closure], penalty: Closure | None, move: Any
    ) -> tuple[Tensor, Tensor | None, list[Tensor] | None]:
        """Losses, penalties, and the gradients of the losses alone where `linearizes` asks."""
        total = None
        with torch.enable_grad():
            for closure in closures:
                losses = self._losses(closure)
                self._accumulate(losses)
                total = losses.detach() if total is None else total + losses.detach()
            gradients = None
            if self.linearizes:
                gradients = [g.clone() for g in move.gradients()]
            penalties = None
            if penalty is not None:
                penalties = self._losses(penalty, "penalty")
                if penalties.requires_grad:
                    self._accumulate(penalties)
                penalties = penalties.detach()
        assert total is not None
        return total, penalties, gradients

    def _accumulate(self, losses: Tensor) -> None:
        if not losses.requires_grad:
            raise ValueError(
                "the losses do not depend on the particles' parameters: compute them from "
                "particles(x), outside of torch.no_grad()"
            )
        losses.sum().backward()

    def _weigh(
        self, losses: Tensor, again: Tensor | None, slope: Tensor | None, alive: Tensor
    ) -> Tensor:
        """Uniform weights over the living; the weighted filter does better."""
        count = alive.sum().clamp(min=1).double()
        level = torch.where(alive, -count.log(), -torch.inf)
        return self._reweigh(level - torch.where(self.alive, self.raw_log_weights, 0.0), alive)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.optimizer.load_state_dict(state["optimizer"])
