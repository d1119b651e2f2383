"""Filters that move particles along their gradients: x <- x - sigma^2 grad L."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..particles import Ensemble
from ..particles.parameter import per_particle_view
from .base import Link
from .moves import choose_move
from .stepping import Closure, StepInfo, SteppedFilter, sum_of
from .weights import is_finite

# They look at a whole tensor at a time: of stacked networks, each would change the others' steps.
WHOLE_TENSORS = (torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Muon)


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
        if not isinstance(optimizer, torch.optim.Optimizer):
            kind = type(optimizer).__name__
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {kind}")
        base = getattr(optimizer, "base", optimizer)  # of an ol.TRAC
        if isinstance(base, WHOLE_TENSORS):
            raise ValueError(
                f"{type(base).__name__} would mix stacked networks with each other: use an "
                "optimizer that moves every number by itself, such as SGD or Adam"
            )
        ours = {id(p) for p in particles.parameters()}
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) not in ours:
                raise ValueError(
                    f"the optimizer holds a parameter of shape {tuple(parameter.shape)} that is "
                    "not the particles': build it from particles.parameters()"
                )
        self.optimizer, self.max_grad_norm = optimizer, max_grad_norm
        self.weigh_penalty = weigh_penalty
        self.consolidations: list[Consolidation] = []

    def register(self, consolidation: Consolidation) -> None:
        """Have `before_update()` and `after_update()` called around every optimizer step."""
        self.consolidations.append(consolidation)

    # ------------------------------------------------------------------ one step

    def step(
        self,
        closure: Closure | Sequence[Closure],
        *,
        penalty: Closure | None = None,
        weigh_penalty: bool | None = None,
    ) -> StepInfo:
        """As `SteppedFilter.step`; `weigh_penalty` overrides the filter's own for this step."""
        usual = self.weigh_penalty
        self.weigh_penalty = usual if weigh_penalty is None else weigh_penalty
        try:
            return super().step(closure, penalty=penalty)
        finally:
            self.weigh_penalty = usual

    def _advance(self, closures: Sequence[Closure], penalty: Closure | None) -> StepInfo:
        needs_gradients = self.linearizes or any(
            getattr(each, "reads_gradients", True) for each in self.consolidations
        )
        overlaps = self.evaluates_twice + (self.max_grad_norm is not None)
        move = choose_move(self.optimizer, self.particles, needs_gradients, overlaps)
        noise, factoring = self._noise(), self.particles.factoring(move.update)
        shard = self.particles.shard  # gradients are of the particles here, weights of all
        with self._nothing_half_done() as (old_buffers, draw), self._precision(), factoring:
            move.begin()
            losses, penalties, gradients = self._backward(closures, penalty, move)
            everything = losses + move.bound()
            if penalties is not None:
                everything = everything + penalties
                penalties = shard.gather(penalties)
            alive = self.alive & shard.gather(is_finite(everything))
            losses = shard.gather(losses)
            self._refuse_if_none(alive)

            clip = None
            if self.max_grad_norm is not None:
                norms = move.squared_norms().sqrt()
                clip = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
            for consolidation in self.consolidations:
                consolidation.before_update()
            try:
                move.move(clip)
                for consolidation in self.consolidations:
                    consolidation.after_update()
                weighed = losses
                if penalties is not None and self.weigh_penalty:
                    weighed = losses + penalties
                after = again = slope = None
                if self.evaluates_twice:
                    # the penalty after the losses, as the first time: it draws the same noise
                    last = [penalty] if penalty is not None and self.weigh_penalty else []
                    rows = self._losses_again([*closures, *last], draw, noise)
                    after, again = sum_of(rows[: len(closures)]), sum_of(rows)
                if gradients is not None:
                    slope = shard.gather(move.along_gradient(gradients))  # type: ignore[attr-defined]
                alive = self._weigh(weighed, again, slope, alive)
                self._refuse_if_none(alive)
            except BaseException:
                move.undo()
                raise
            lives = alive & self.alive
            move.settle(shard.local(lives), lives)

        with torch.no_grad():
            for name, buffer in self.particles.particle_buffers().items():
                keep = per_particle_view(shard.local(alive), buffer)
                buffer.copy_(torch.where(keep, buffer, old_buffers[name]))
        return StepInfo(losses, after, penalties, self.alive, self.raw_log_weights)

    def _backward(
        self, closures: Sequence[Closure], penalty: Closure | None, move: Any
    ) -> tuple[Tensor, Tensor | None, list[tuple[nn.Parameter, Tensor]] | None]:
        """Losses, penalties, and where `linearizes` asks the gradients of what is weighed.

        The penalty goes backwards together with the last closure, so it may use that closure's
        outputs instead of computing them again.
        """
        apart = self.linearizes and penalty is not None and not self.weigh_penalty
        gradients = penalties = None
        with torch.enable_grad():
            rows = []
            for closure in closures[:-1]:
                rows.append(self._differentiable_losses(closure))
                move.backward(rows[-1])
            rows.append(self._differentiable_losses(closures[-1]))
            last = rows[-1]
            if apart:
                move.backward(last, retain_graph=True)
                gradients = _copies(move.moving())
            if penalty is not None:
                penalties = self._losses(penalty, "penalty")
                last = penalties if apart else last + penalties
            if last.requires_grad:
                move.backward(last)
            move.gathered()
            if self.linearizes and not apart:
                gradients = _copies(move.moving())
        total = sum_of([losses.detach() for losses in rows])
        return total, None if penalties is None else penalties.detach(), gradients

    def _differentiable_losses(self, closure: Closure) -> Tensor:
        losses = self._losses(closure)
        if not losses.requires_grad:
            raise ValueError(
                "the losses do not depend on the particles' parameters: compute them from "
                "particles(x), outside of torch.no_grad()"
            )
        return losses

    def _weigh(
        self, losses: Tensor, again: Tensor | None, slope: Tensor | None, alive: Tensor
    ) -> Tensor:
        """Uniform weights over the living; the weighted filter does better."""
        count = alive.sum().clamp(min=1).double()
        level = torch.where(alive, -count.log(), -torch.inf)
        return self._reweigh(level - torch.where(self.alive, self.raw_log_weights, 0.0), alive)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        optimizer = self.particles.shard.collect_all(self.optimizer.state_dict())
        return {**super().state_dict(), "optimizer": optimizer}

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        ours = self.optimizer.state_dict()["param_groups"]
        theirs = state["optimizer"]["param_groups"]
        if [_shape(group) for group in ours] != [_shape(group) for group in theirs]:
            raise ValueError(
                f"this state is of another optimizer than {type(self.optimizer).__name__} "
                "over these parameters: its parameter groups differ"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        own = self.particles.shard.local_all(state["optimizer"])
        # torch's optimizers go on in the very tensors they are given
        own = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, own)
        self.optimizer.load_state_dict(own)
        if self.particles.device.type != "cuda":  # where nothing is recorded, as it was on a GPU
            for group in self.optimizer.param_groups:
                if "capturable" in group:
                    group["capturable"] = False


def _shape(group: dict[str, Any]) -> tuple[set[str], int]:
    """What tells one optimizer's parameter group from another's: its options and its size."""
    return set(group), len(group["params"])


def _copies(moving: list[nn.Parameter]) -> list[tuple[nn.Parameter, Tensor]]:
    """Gradients as they are now: the move may clip them, a penalty add to them."""
    return [(p, p.grad.clone()) for p in moving if p.grad is not None]
