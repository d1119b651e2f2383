"""Filters that move particles along their gradients: x <- x - sigma^2 grad L."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..ensemble import Ensemble
from ..ensemble.linear import Write
from .base import copied
from .move import Move, QuadraticPenalty, UpdateHooks, choose_move, takes_closed_steps
from .optimizers import check_optimizer, check_state
from .step import Closure, Step, StepInfo, SteppedFilter, added
from .weights import is_finite


class Weighting(ABC):
    """A rule for the weights: `weighting(step)` is the increment of the log-weights `[N]`.

    `step.energy_before` `[N]` is the energy (the loss, perhaps with the penalty) at the old
    positions. A rule that needs more declares it in `reads`: `"energy_after"`, the energy at the
    new positions, for which the closure is called again, or `"slope"`, <grad L, x_new - x_old>, for
    which it is not. Rules must not be mutated: a CUDA graph is recorded again for another rule, but
    not for one that has changed.
    """

    reads: ClassVar[str | None] = None

    @abstractmethod
    def __call__(self, step: GradientStep) -> Tensor: ...


class GradientStep(Step):
    """A step along the gradients of loss and penalty, taken by the filter's optimizer."""

    filter: GradientFilter

    def __init__(
        self,
        owner: GradientFilter,
        closures: Sequence[Closure],
        penalty: Closure | None,
        weigh_penalty: bool,
    ) -> None:
        super().__init__(owner, closures)
        self.penalty_closure = penalty
        # a penalty in the weights is differentiated, and evaluated again, with the losses
        self.weighed_penalty = penalty if weigh_penalty else None
        self.log_weights = owner.raw_log_weights

    def __enter__(self) -> Self:
        super().__enter__()
        self._move = choose_move(self, self.filter, self._closed())
        self.contexts.enter_context(self.particles.factoring(self._move.update))
        return self

    def move(self) -> None:
        """x <- x - sigma^2 grad L, for the particles whose loss and gradient are finite."""
        move = self._move
        losses, penalties = self._backward(move)
        finite = losses + move.bound()
        if penalties is not None:
            finite = finite + penalties
            self.penalty = self.shard.gather(penalties)
        self.alive = self.filter.alive & self.shard.gather(is_finite(finite))
        self.loss_before = self.shard.gather(losses)
        self.filter.fail_if_none(self.alive)
        clip, largest = None, self.filter.max_grad_norm
        if largest is not None:
            clip = (largest / (move.squared_norms().sqrt() + 1e-6)).clamp(max=1.0)
        for hooks in self.filter.consolidations:
            self.hold(*getattr(hooks, "changed_by_update", tuple)())
            hooks.before_update()
        move.take(clip)
        for hooks in self.filter.consolidations:
            hooks.after_update()

    def _closed(self) -> list[QuadraticPenalty]:
        """The penalties that this step applies itself; their `closed` is True until it ends."""
        # the slope of a penalty needs its gradient
        if self.weighed_penalty is not None and self.filter.weighting.reads == "slope":
            return []
        quadratics = self.filter.closed_penalties()
        for quadratic in quadratics:
            quadratic.closed = True
            self.contexts.callback(setattr, quadratic, "closed", False)
        return [quadratic for quadratic in quadratics if quadratic.holds]

    def _backward(self, move: Move) -> tuple[Tensor, Tensor | None]:
        """Compute losses and penalties; their gradients go into `move`.

        The penalty is differentiated together with the last closure, so that it can use that
        closure's outputs instead of computing them again.
        """
        rows, penalties = [], None
        with torch.enable_grad():
            for closure in self.closures[:-1]:
                rows.append(self.differentiable(closure)[0])
                move.backward(rows[-1])
            last, outputs = self.differentiable(self.closures[-1])
            rows.append(last)
            apart = move.slopes and self.penalty_closure and not self.weighed_penalty
            if apart:
                move.backward(last, retain_graph=True)
                move.keep_gradients()
            if self.penalty_closure is not None:
                penalties = self._penalty(self.penalty_closure, outputs)
                last = penalties if apart else last + penalties
            if last.requires_grad:
                move.backward(last)
            move.gathered()
            if move.slopes and not apart:
                move.keep_gradients()
        total = added([losses.detach() for losses in rows])
        return total, None if penalties is None else penalties.detach()

    def evaluate(self, closure: Closure, what: str = "closure", **given: Any) -> tuple[Tensor, Any]:
        with self._move.watching():
            return super().evaluate(closure, what, **given)

    def _penalty(self, closure: Closure, outputs: Any) -> Tensor:
        given = {} if outputs is None else {"outputs": outputs}
        return self.evaluate(closure, "penalty", **given)[0]

    @property
    def energy_before(self) -> Tensor:
        """The loss, and the penalty if it is weighed, at the old positions: `[N]`, float64."""
        if self.weighed_penalty is None or self.penalty is None:
            return self.loss_before.double()
        return (self.loss_before + self.penalty).double()

    @cached_property
    def energy_after(self) -> Tensor:
        """The loss, and the penalty if it is weighed, at the new positions: `[N]`.

        The penalty follows the losses, as in the first evaluation, so that it draws the same noise.
        """
        rows = []
        with self.again():
            for closure in self.closures:
                losses, outputs = self.evaluate(closure)
                rows.append(losses)
            self.loss_after = self.gather(rows)
            if self.weighed_penalty is None:
                return self.loss_after
            return self.gather([*rows, self._penalty(self.weighed_penalty, outputs)])

    @cached_property
    def slope(self) -> Tensor:
        """<grad L, x_new - x_old> for the actual displacement: `[N]`, float64."""
        if not self._move.slopes:
            raise RuntimeError("a weighting that uses the slope must declare it: reads = 'slope'")
        return self.shard.gather(self._move.along_gradient())

    def commit(self, gain: Tensor) -> None:
        self._move.check()  # before any weight changes
        super().commit(gain)

    def pending(self, alive: Tensor) -> list[Write]:
        return self._move.writes(alive)

    def undo(self) -> None:
        super().undo()
        self._move.undo()


class GradientFilter(SteppedFilter):
    """Gradient steps with weights by any rule; see `Weighting`.

    The gradient is that of loss + penalty (or the step is closed, see `register`); the weights use
    the loss only, unless `weigh_penalty`: a penalty stands for past data, and in the weights it
    would count that data again at every step.

    A particle whose loss or gradient is not finite dies: its weight is 0, and its parameters,
    buffers and optimizer state stay as they were before the step. The others continue.
    """

    recorded_by = ("weighting", "max_grad_norm", "weigh_penalty", "consolidations")
    plain_state = ("seed", "optimizer")

    def __init__(
        self,
        particles: Ensemble,
        optimizer: torch.optim.Optimizer,
        *,
        weighting: Weighting,
        max_grad_norm: float | None = None,
        weigh_penalty: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(particles, **options)
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive, got {max_grad_norm}")
        check_optimizer(optimizer, particles)
        self.optimizer, self.max_grad_norm = optimizer, max_grad_norm
        self.weighting, self.weigh_penalty = weighting, weigh_penalty
        self.consolidations: list[UpdateHooks] = []
        self._closed: set[UpdateHooks] = set()

    def register(self, consolidation: UpdateHooks, closed: bool | None = None) -> None:
        """Call `before_update()` and `after_update()` around every optimizer step.

        A quadratic penalty (EWC, SI) that is `closed` is applied by every step itself, in closed
        form. None, the default, means: with SGD, whose metric is the learning rate (over
        1 - momentum). True also allows Adam (metric lr / (sqrt(v) + eps)). False leaves the penalty
        to `step(penalty=...)`. Strengths in the literature are for Adam and a penalty in the
        gradient. Registering it again only changes `closed`.
        """
        if takes_closed_steps(consolidation, self.optimizer, closed):
            self._closed.add(consolidation)
        else:
            self._closed.discard(consolidation)
        if consolidation not in self.consolidations:
            self.consolidations.append(consolidation)

    def closed_penalties(self) -> list[QuadraticPenalty]:
        """The registered penalties that steps apply in closed form."""
        return [
            each
            for each in self.consolidations
            if each in self._closed and isinstance(each, QuadraticPenalty)
        ]

    def advance(
        self,
        closures: Sequence[Closure],
        penalty: Closure | None = None,
        weigh_penalty: bool | None = None,
    ) -> StepInfo:
        """Algorithm 1 of arXiv:2410.22695; `weigh_penalty=None` uses the filter's setting."""
        with self.transaction(closures, penalty, weigh_penalty) as step:
            step.move()  # x <- x - sigma^2 grad L(x)
            step.commit(self.weighting(step))  # log w <- log w - (L(x_t) + L(x_{t+1})) / 2
        return step.info

    def transaction(
        self,
        closures: Sequence[Closure],
        penalty: Closure | None = None,
        weigh_penalty: bool | None = None,
    ) -> GradientStep:
        """`with pf.transaction(closures) as step:` is a step that is undone after an error."""
        usual = self.weigh_penalty if weigh_penalty is None else weigh_penalty
        return GradientStep(self, closures, penalty, usual)

    def state_dict(self) -> dict[str, Any]:
        optimizer = self.particles.shard.collect_all(copied(self.optimizer.state_dict()))
        return {**super().state_dict(), "optimizer": optimizer}

    def check_state(self, state: Mapping[str, Any]) -> None:
        super().check_state(state)
        check_state(self.optimizer, state["optimizer"], self.particles.n)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)
        # a copy: torch's optimizers keep the tensors they are given
        own = copied(self.particles.shard.local_all(state["optimizer"]))
        fused = [group.get("fused") for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(own)  # first, because it may still raise
        super().load_state_dict(state)
        if self.particles.device.type != "cuda":  # a state from a GPU is set up for recording
            for group, before in zip(self.optimizer.param_groups, fused, strict=True):
                if "capturable" in group:
                    group["capturable"] = False
                    if "fused" in group:
                        group["fused"] = before
