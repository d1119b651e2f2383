"""Filters that move particles along their gradients: x <- x - sigma^2 grad L."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..particles import Ensemble
from .base import Link
from .move import Move, QuadraticPenalty, UpdateHooks, check_closed, choose_move, closes_by_default
from .optimizers import check_optimizer, check_state
from .step import Closure, Step, StepInfo, SteppedFilter, added
from .weights import is_finite


class Weighting(ABC):
    """What a step is worth: `weighting(step)` is the log-likelihood `[N]` that weights grow by.

    `step.energy_before` `[N]` is what the weights see of the loss at the old positions. A rule that
    needs more says so in `reads`: `"energy_after"`, the same at the new positions, for which the
    closure is called again, or `"slope"`, <grad L, x_new - x_old>, for which it is not. Do not
    change a rule: a CUDA graph is recorded again for another rule, not for one that changed.
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
        # what the weights see too goes backwards, and is evaluated again, with the losses
        self.weighed_penalty = penalty if weigh_penalty else None
        self.log_weights = owner.raw_log_weights

    def __enter__(self) -> Self:
        super().__enter__()
        self._move = choose_move(self, self.filter, self._closed())
        self.contexts.enter_context(self.particles.factoring(self._move.update))
        return self

    # ------------------------------------------------------------------ x <- x - sigma^2 grad L

    def move(self) -> None:
        """One step of the optimizer, for the particles whose loss and gradient are finite."""
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
        """The penalties that this step applies itself; until it ends, their `closed` is True."""
        # a slope of penalties is read off their gradient, which then has to be there
        if self.weighed_penalty is not None and self.filter.weighting.reads == "slope":
            return []
        quadratics = self.filter.closed_penalties()
        for quadratic in quadratics:
            quadratic.closed = True
            self.contexts.callback(setattr, quadratic, "closed", False)
        return [quadratic for quadratic in quadratics if quadratic.holds]

    def _backward(self, move: Move) -> tuple[Tensor, Tensor | None]:
        """Losses and penalties, their gradients in `move`.

        The penalty goes backwards together with the last closure, so it may use that closure's
        outputs instead of computing them again.
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

    # ------------------------------------------------------------------ what the weights may see

    @property
    def energy_before(self) -> Tensor:
        """What the weights see of the loss where particles stood: `[N]`, float64."""
        if self.weighed_penalty is None or self.penalty is None:
            return self.loss_before.double()
        return (self.loss_before + self.penalty).double()

    @cached_property
    def energy_after(self) -> Tensor:
        """What the weights see of the loss where particles now stand: `[N]`.

        The penalty comes after the losses, as the first time: it draws the same noise.
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
        """<grad L, x_new - x_old>, from the displacement that really happened: `[N]`, float64."""
        if not self._move.slopes:
            raise RuntimeError("a weighting that looks at the slope must say so: reads = 'slope'")
        return self.shard.gather(self._move.along_gradient())

    # ------------------------------------------------------------------ whole or not at all

    def commit(self, gain: Tensor) -> None:
        self._move.check()  # before anybody is weighed
        super().commit(gain)

    def settle(self, alive: Tensor) -> None:
        super().settle(alive)
        self._move.settle(self.shard.local(alive))

    def undo(self) -> None:
        super().undo()
        self._move.undo()


class GradientFilter(SteppedFilter):
    """Gradient steps with weights by any rule; see `Weighting`.

    The gradient sees loss + penalty (or the step is closed, see `register`); the weights see the
    loss only, unless `weigh_penalty`: a penalty stands for past data, and in the weights it would
    count that past at every step again.

    A particle whose loss or gradient is not finite dies: weight 0, and its parameters, buffers and
    optimizer state stay as they were before the step. The others go on.
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
        link: Link = "softmax",
        min_ess: float | None = None,
        check_every: int = 100,
    ) -> None:
        super().__init__(particles, link=link, min_ess=min_ess, check_every=check_every)
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive, got {max_grad_norm}")
        check_optimizer(optimizer, particles)
        self.optimizer, self.max_grad_norm = optimizer, max_grad_norm
        self.weighting, self.weigh_penalty = weighting, weigh_penalty
        self.consolidations: list[UpdateHooks] = []
        self._closed: dict[UpdateHooks, bool | None] = {}

    def register(self, consolidation: UpdateHooks, closed: bool | None = None) -> None:
        """Have `before_update()` and `after_update()` called around every optimizer step.

        A quadratic penalty (EWC, SI) is from now on applied by every step itself where it is
        `closed`: None, the default, means with SGD, whose metric is the learning rate (over
        1 - momentum); True is for Adam, too (metric lr / (sqrt(v) + eps)); False leaves it to
        `step(penalty=...)`. Strengths in the literature are meant for Adam and a penalty in the
        gradient.
        """
        if closed:
            check_closed(consolidation, self.optimizer)
        self.consolidations.append(consolidation)
        self._closed[consolidation] = closed

    def closed_penalties(self) -> list[QuadraticPenalty]:
        """The registered penalties that steps apply in closed form."""
        usual = closes_by_default(self.optimizer)
        return [
            each
            for each in self.consolidations
            if isinstance(each, QuadraticPenalty)
            and (usual if (closed := self._closed.get(each)) is None else closed)
        ]

    # ------------------------------------------------------------------ one step

    def advance(
        self,
        closures: Sequence[Closure],
        penalty: Closure | None = None,
        weigh_penalty: bool | None = None,
    ) -> StepInfo:
        """Algorithm 1 of arXiv:2410.22695; `weigh_penalty`: None means as the filter was made."""
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
        """`with pf.transaction(closures) as step:` is a step that can still be taken back."""
        usual = self.weigh_penalty if weigh_penalty is None else weigh_penalty
        return GradientStep(self, closures, penalty, usual)

    def state_dict(self) -> dict[str, Any]:
        optimizer = self.particles.shard.collect_all(self.optimizer.state_dict())
        return {**super().state_dict(), "optimizer": optimizer}

    def _check_state(self, state: Mapping[str, Any]) -> None:
        super()._check_state(state)
        check_state(self.optimizer, state["optimizer"], self.particles.n)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check_state(state)
        own = self.particles.shard.local_all(state["optimizer"])
        # torch's optimizers go on in the very tensors they are given
        own = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, own)
        fused = [group.get("fused") for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(own)  # first, because it may yet refuse
        super().load_state_dict(state)
        if self.particles.device.type != "cuda":  # where nothing is recorded, as it was on a GPU
            for group, before in zip(self.optimizer.param_groups, fused, strict=True):
                if "capturable" in group:
                    group["capturable"] = False
                    if "fused" in group:
                        group["fused"] = before
