r"""Algorithm 1 of the paper (arXiv:2410.22695): gradient steps, weighted by what they explain.

With $\tilde p_t(x) = \sum_i w_t^{(i)} N(x; x_t^{(i)}, \sigma^2 I)$ as the prior and the likelihood
$e^{-L(x)}$, linearising L at each particle gives the posterior in the same form (section 3.4):

    x_{t+1} = x_t - sigma^2 grad L(x_t)
    log w_{t+1} = log w_t - (L(x_t) + L(x_{t+1})) / 2

For linear losses this is the exact Bayes update, in any order of the data. For smooth losses two
orders of two batches differ by O(sigma^4).

Differences from the paper's code: weights are normalised float64 logarithms; every particle has its
own BatchNorm statistics; a particle with a non-finite loss or gradient dies: its weight is 0 for
ever, its parameters are what they have become, and nothing reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..ensemble import Ensemble
from ..ensemble.device import matrix_precision
from ..ensemble.ensemble import Draws
from ..ensemble.linear import Descent, descending, descents_of
from ..ensemble.stacking import squared_norms
from .base import Closure, ParticleFilter, StepInfo, total
from .optimized import (
    OptimizedFilter,
    Tangent,
    clear_gradients,
    clip_gradients,
    gradients_of,
    take_step,
)
from .weights import Step, Weighting


@dataclass(frozen=True)
class Trapezoid(Weighting):
    """log w -= (L(x_t) + L(x_{t+1})) / 2: the loss is evaluated at both ends (the paper's)."""

    reads = "energy_after"
    loss_scale: float = 1.0

    def __call__(self, step: Step) -> Tensor:
        return -self.loss_scale / 2 * (step.energy_before + step.energy_after)


@dataclass(frozen=True)
class Linearized(Weighting):
    """log w -= L(x_t) + <grad L, x_{t+1} - x_t> / 2: no second evaluation."""

    reads = "slope"
    loss_scale: float = 1.0

    def __call__(self, step: Step) -> Tensor:
        return -self.loss_scale / 2 * (2 * step.energy_before + step.slope)


@dataclass(frozen=True)
class Uniform(Weighting):
    """Equal weights for all particles that are alive."""

    def __call__(self, step: Step) -> Tensor:
        level = -step.alive.sum().clamp(min=1).double().log()
        return level - torch.where(step.alive, step.log_weights, 0.0)


class GradientFilter(OptimizedFilter):
    """Gradient steps with weights by any rule; see `Weighting`.

    The gradient is that of loss + penalty; the weights use the loss only, unless `weigh_penalty`: a
    penalty stands for past data, and in the weights it would count that data again at every step.

    Args:
        particles: an `ol.Ensemble`.
        optimizer: any torch optimizer over `particles.parameters()` that moves every number by
            itself (Adafactor, LBFGS and Muon do not).
        weighting: the rule of the weights.
        max_grad_norm: clip each particle's gradient norm by itself.
        weigh_penalty: let the weights see the penalty too.
        options: `link`, `min_ess` and `check_every`, as in every filter. Outputs that are numbers
            and not classes need `link="identity"`: a filter sees losses only and cannot tell.

    >>> import torch, orderless as ol
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(2, 1), n=3)
    >>> adam = torch.optim.Adam(particles.parameters())
    >>> rule = ol.filters.Linearized()
    >>> pf = ol.GradientFilter(particles, adam, weighting=rule, link="identity")
    >>> pf.step(lambda: particles(torch.ones(4, 2)).square().mean((1, 2))).loss_before.shape
    torch.Size([3])
    """

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
        super().__init__(particles, optimizer, **options)
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive, got {max_grad_norm}")
        self.weighting = weighting
        self.max_grad_norm = max_grad_norm
        self.weigh_penalty = weigh_penalty

    def advance(self, closures: Sequence[Closure], penalty: Closure | None = None) -> StepInfo:
        """Algorithm 1."""
        particles = self.particles
        draws = Draws(particles)
        clear_gradients(self.optimizer)
        with matrix_precision(particles.precision, particles.device):
            # L(x_t), and its gradient
            try:
                last, loss, penalties = self._losses(closures, penalty)
                alive = self.living(loss)
            except BaseException:
                draws.rewind()  # as if no forward pass had been made
                raise
            tangent, descents = self._backward(last, penalties, len(closures))

            # x <- x - sigma^2 grad L(x); what the backward pass has moved has no gradient here
            if self.weighting.reads is None:  # otherwise a bad gradient shows where the step ends
                slopes = [descent.slope for descent in descents if descent.slope is not None]
                alive &= squared_norms([*gradients_of(self.optimizer), *slopes]).isfinite()
            clip_gradients(self.optimizer, self.max_grad_norm)
            for hooks in self.hooks:
                hooks.before_update()
            take_step(self.optimizer)
            for hooks in self.hooks:
                hooks.after_update()

            # log w <- log w - (L(x_t) + L(x_{t+1})) / 2, or another rule
            with torch.no_grad():
                energy = loss.double()
                if penalties is not None:
                    penalties = penalties.detach()
                    alive &= penalties.isfinite()
                    energy = energy + penalties if self.weigh_penalty else energy
                loss_after = None
                energy_after = slope = energy
                if self.weighting.reads == "energy_after":
                    # a hook may have changed what a layer knows of its step
                    known = [] if self.hooks else descents
                    with draws.again(), descending(known):
                        loss_after, energy_after = self._energy(closures, penalty)
                if tangent is not None:
                    slope = tangent.slope()
                step = Step(energy, energy_after, slope, alive, self.raw_log_weights)
                self.reweigh(self.weighting(step), alive)
        return StepInfo(loss, loss_after, penalties, self.alive, self.raw_log_weights)

    def _losses(
        self, closures: Sequence[Closure], penalty: Closure | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The last closure's losses with their graph, L(x_t), and the penalty with its graph.

        The other closures are differentiated at once. The penalty is differentiated together with
        the last one, so that it can use that closure's outputs instead of computing them again.
        """
        parts = []
        with torch.enable_grad():
            for number, closure in enumerate(closures, 1):
                losses, outputs = self.evaluate(closure)
                if not losses.requires_grad:
                    raise ValueError(
                        "the losses do not depend on the particles' parameters: compute them from "
                        "particles(x), outside of torch.no_grad()"
                    )
                parts.append(losses.detach())
                if number < len(closures):
                    _differentiate(losses)
            penalties = self.penalty_sum(penalty, outputs)
        return losses, total(parts), penalties

    def _backward(
        self, losses: Tensor, penalties: Tensor | None, closures: int
    ) -> tuple[Tangent | None, list[Descent]]:
        """Write the gradients of loss + penalty, or take the step of plain SGD at once.

        Returns the line of what is weighed, if the weighting reads its slope, and the steps that
        layers have taken.
        """
        tangent = None
        energy = losses if penalties is None else losses + penalties
        reads_slope = self.weighting.reads == "slope"
        if reads_slope and penalties is not None and not self.weigh_penalty:
            _differentiate(losses, retain_graph=True)
            tangent = Tangent(self.optimizer)
            energy = penalties
        # Nobody else may read or change a gradient that is never written. A single particle uses
        # torch.optim.SGD itself, so that N = 1 is SGD bit for bit.
        at_once = closures == 1 and not reads_slope and self.max_grad_norm is None
        at_once = at_once and self.particles.runs_batched
        at_once = at_once and not any(getattr(h, "reads_gradients", True) for h in self.hooks)
        descents = descents_of(self.optimizer, energy) if at_once else []
        with descending(descents):
            if energy.requires_grad:
                _differentiate(energy)
        if reads_slope and tangent is None:
            tangent = Tangent(self.optimizer)
        if not descents and not gradients_of(self.optimizer):
            raise ValueError(
                "the losses do not depend on any parameter that the optimizer holds: "
                "compute them from particles(x)"
            )
        return tangent, descents

    def _energy(
        self, closures: Sequence[Closure], penalty: Closure | None
    ) -> tuple[Tensor, Tensor]:
        """L(x_{t+1}), and the same with the penalty if it is weighed: `[N]`."""
        parts = []
        for closure in closures:
            losses, outputs = self.evaluate(closure)
            parts.append(losses)
        loss = total(parts)
        # the penalty follows the losses, as in the first evaluation, so that it draws the same
        penalties = self.penalty_sum(penalty, outputs) if self.weigh_penalty else None
        return loss, loss if penalties is None else total([*parts, penalties])

    def recorded_settings(self) -> tuple[Any, ...]:
        seen = repr(self.weighting), self.max_grad_norm, self.weigh_penalty
        return *super().recorded_settings(), *seen


def _differentiate(losses: Tensor, retain_graph: bool = False) -> None:
    """Add every particle's gradient to `.grad`; one particle's loss depends on it alone."""
    losses.backward(torch.ones_like(losses), retain_graph=retain_graph)


class WeightedParticleFilter(GradientFilter):
    """The paper's filter: gradient steps, and weights by the losses at both ends of each step.

    Args:
        particles: an `ol.Ensemble`.
        optimizer: see `GradientFilter`. With plain SGD, lr is the paper's sigma^2 and weights and
            evidence are those of the Gaussian mixture; with any other optimizer they are a
            heuristic of the same form.
        weighting: `"trapezoid"` evaluates the loss again at the new position (the paper's);
            `"linearized"` uses log w -= L_old + <g, x_new - x_old> / 2 from the displacement that
            happened, without a second forward pass. They agree where the loss is linear.
        loss_scale: multiplies the loss in the weights only. A batch *mean* as loss tempers the
            posterior by 1/B; `loss_scale=B` undoes that. 1 is the paper's.
        options: `min_ess`, `link` (give `"identity"` for a regression), `max_grad_norm`,
            `weigh_penalty`; see `GradientFilter`.

    >>> import torch, orderless as ol
    >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(2, 2), n=8, seed=0)
    >>> pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    >>> loss = ol.per_particle(torch.nn.functional.cross_entropy)
    >>> for _ in range(50):
    ...     info = pf.step(lambda: loss(particles(x), y))
    >>> bool((pf.predict(x).argmax(1) == y).float().mean() > 0.9)
    True
    """

    WEIGHTINGS: ClassVar[dict[str, type[Trapezoid] | type[Linearized]]] = {
        "trapezoid": Trapezoid,
        "linearized": Linearized,
    }

    def __init__(
        self,
        particles: Ensemble,
        optimizer: torch.optim.Optimizer,
        *,
        weighting: str = "trapezoid",
        loss_scale: float = 1.0,
        **options: Any,
    ) -> None:
        if weighting not in self.WEIGHTINGS:
            names = " or ".join(map(repr, self.WEIGHTINGS))
            raise ValueError(f"weighting must be {names}, got {weighting!r}")
        if not loss_scale > 0:
            raise ValueError(f"loss_scale must be positive, got {loss_scale}")
        rule = self.WEIGHTINGS[weighting](loss_scale)
        super().__init__(particles, optimizer, weighting=rule, **options)

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by in the weights; it may be set at any time."""
        assert isinstance(self.weighting, Trapezoid | Linearized)
        return self.weighting.loss_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        assert isinstance(self.weighting, Trapezoid | Linearized)
        self.weighting = replace(self.weighting, loss_scale=value)


class AveragingParticles(GradientFilter):
    """A deep ensemble: gradient steps, equal weights for the particles that are alive.

    The paper's "averaging particles". `log_evidence` stays 0: nothing is weighed.

    >>> import torch, orderless as ol
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(2, 1), n=4)
    >>> optimizer = torch.optim.SGD(particles.parameters(), lr=0.1)
    >>> ol.AveragingParticles(particles, optimizer).weights.tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    def __init__(
        self, particles: Ensemble, optimizer: torch.optim.Optimizer, **options: Any
    ) -> None:
        super().__init__(particles, optimizer, weighting=Uniform(), **options)

    def joined_log_weights(self, parts: Sequence[ParticleFilter]) -> tuple[Tensor, Tensor]:
        alive = torch.cat([part.alive for part in parts])
        level = -alive.sum().double().log()
        return torch.where(alive, level, -torch.inf), torch.zeros_like(level)


class GradientDescent(AveragingParticles):
    """One particle: with `torch.optim.SGD` this *is* SGD, bit for bit.

    >>> import torch, orderless as ol
    >>> one = ol.Ensemble(lambda: torch.nn.Linear(2, 1), n=1)
    >>> ol.GradientDescent(one, torch.optim.SGD(one.parameters(), lr=0.1)).ess
    tensor(1., dtype=torch.float64)
    """

    def __init__(
        self, particles: Ensemble, optimizer: torch.optim.Optimizer, **options: Any
    ) -> None:
        super().__init__(particles, optimizer, **options)
        if particles.n != 1:
            raise ValueError(f"gradient descent has one particle, got an ensemble of {particles.n}")
