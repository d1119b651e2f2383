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

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from ..consolidation.base import Consolidation
from ..ensemble import Ensemble
from ..ensemble.draws import Draws
from ..ensemble.linear import descending, used_once
from ..ensemble.parameter import inner_products, per_particle_view, squared_norms
from ..ensemble.precision import matrix_precision
from .base import Closure, ParticleFilter, StepInfo, copied
from .optimizers import check_optimizer, check_state, is_plain_descent
from .weights import is_finite


@dataclass(frozen=True)
class Step:
    """What a weighting sees of one step: tensors `[N]`.

    The energy is the loss, plus the penalty if it is weighed, in float64.
    """

    energy_before: Tensor  # at x_t
    energy_after: Tensor  # at x_{t+1}; of no meaning for a weighting that does not read it
    slope: Tensor  # <grad energy(x_t), x_{t+1} - x_t>; the same
    alive: Tensor
    log_weights: Tensor


class Weighting(ABC):
    """A rule for the weights: `weighting(step)` is the increment of the log-weights `[N]`.

    A rule that needs more than `step.energy_before` declares it in `reads`: `"energy_after"`, for
    which the closure is called again, or `"slope"`, for which it is not.
    """

    reads: ClassVar[str | None] = None

    @abstractmethod
    def __call__(self, step: Step) -> Tensor: ...


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


class UpdateHooks(Protocol):
    """What `register` takes besides penalties: called around `optimizer.step()`."""

    def before_update(self) -> None: ...
    def after_update(self) -> None: ...


class GradientFilter(ParticleFilter):
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
        options: `link`, `min_ess` and `check_every`, as in every filter.

    >>> import torch, orderless as ol
    >>> class Tempered(ol.Weighting):  # weights by a tenth of the loss
    ...     def __call__(self, step):
    ...         return -0.1 * step.energy_before
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(2, 1), n=3)
    >>> optimizer = torch.optim.Adam(particles.parameters())
    >>> pf = ol.GradientFilter(particles, optimizer, weighting=Tempered(), link="identity")
    >>> pf.step(lambda: particles(torch.ones(4, 2)).square().mean((1, 2))).loss_before.shape
    torch.Size([3])
    """

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
        self.optimizer = optimizer
        self.weighting = weighting
        self.max_grad_norm = max_grad_norm
        self.weigh_penalty = weigh_penalty
        self.hooks: list[UpdateHooks] = []
        self.registrations = 0  # the number of calls of `register`

    def register(self, hooks: UpdateHooks, closed: bool | None = None) -> None:
        """Apply a penalty (EWC, SI, LwF) in every step from now on.

        With SGD a quadratic penalty takes its own closed step after the optimizer's; any other
        penalty, and every penalty with another optimizer, is a term of the gradient.
        `closed=False` means the gradient with SGD as well. A penalty that is also part of
        `step(penalty=...)` counts once. Strengths in the literature are for Adam and a penalty in
        the gradient.

        Other objects with `before_update()` and `after_update()` have these called around every
        optimizer step.
        """
        if isinstance(hooks, Consolidation):
            needs_gradient = self.weigh_penalty and self.weighting.reads == "slope"
            hooks.attach(self.optimizer, False if needs_gradient and closed is None else closed)
        if hooks not in self.hooks:
            self.hooks.append(hooks)
        self.registrations += 1

    def advance(self, closures: Sequence[Closure], penalty: Closure | None = None) -> StepInfo:
        """Algorithm 1."""
        draws = Draws(self.particles)
        with matrix_precision(self.particles.precision, self.particles.device):
            self.optimizer.zero_grad(set_to_none=True)
            loss, penalties, finite, tangent = self._backward(closures, penalty, draws)
            self._clip()

            # x <- x - sigma^2 grad L(x); what the backward pass has moved has no gradient here
            for hooks in self.hooks:
                hooks.before_update()
            self.optimizer.step()
            for hooks in self.hooks:
                hooks.after_update()

            # log w <- log w - (L(x_t) + L(x_{t+1})) / 2, or another rule
            with torch.no_grad():
                energy = loss
                if self.weigh_penalty and penalties is not None:
                    energy = loss + penalties
                loss_after = None
                energy_after = energy
                if self.weighting.reads == "energy_after":
                    with draws.again():
                        loss_after, energy_after = self._energy(closures, penalty)
                slope = torch.zeros_like(energy) if tangent is None else tangent.slope()
                alive = self.alive & finite
                step = Step(energy.double(), energy_after, slope, alive, self.raw_log_weights)
                self.reweigh(self.weighting(step), alive)
        return StepInfo(loss, loss_after, penalties, self.alive, self.raw_log_weights)

    def _backward(
        self, closures: Sequence[Closure], penalty: Closure | None, draws: Draws
    ) -> tuple[Tensor, Tensor | None, Tensor, Tangent | None]:
        """L(x_t), the penalty, which particles have finite ones `[N]`, and the gradient's line.

        The penalty is differentiated together with the last closure, so that it can use that
        closure's outputs instead of computing them again.
        """
        apart = self.weighting.reads == "slope" and not self.weigh_penalty
        tangent = None
        losses = []
        with torch.enable_grad():
            try:
                for closure in closures[:-1]:
                    losses.append(self._differentiable(closure)[0])
                    losses[-1].backward(torch.ones_like(losses[-1]))
                last, outputs = self._differentiable(closures[-1])
                losses.append(last)
                penalties = self._penalties(penalty, outputs)
                loss = _sum([part.detach() for part in losses])
                self.check_some_finite(loss)
            except BaseException:
                draws.rewind()  # as if no forward pass had been made
                raise
            if apart and penalties is not None:
                last.backward(torch.ones_like(last), retain_graph=True)
                tangent = Tangent(self.optimizer)
                last = penalties
            elif penalties is not None:
                last = last + penalties
            with descending(self._rates(last, closures)) as slopes:
                if last.requires_grad:
                    last.backward(torch.ones_like(last))
        if self.weighting.reads == "slope" and tangent is None:
            tangent = Tangent(self.optimizer)
        gradients = gradients_of(self.optimizer)
        if not gradients and not slopes:
            raise ValueError(
                "the losses do not depend on any parameter that the optimizer holds: "
                "compute them from particles(x)"
            )
        penalties = None if penalties is None else penalties.detach()
        finite = is_finite(loss if penalties is None else loss + penalties)
        if self.weighting.reads is None:  # otherwise a bad gradient shows where the step ends
            finite = finite & is_finite(squared_norms([*gradients, *slopes]))
        return loss, penalties, finite, tangent

    def _differentiable(self, closure: Closure) -> tuple[Tensor, Any]:
        losses, outputs = self.evaluate(closure)
        if not losses.requires_grad:
            raise ValueError(
                "the losses do not depend on the particles' parameters: compute them from "
                "particles(x), outside of torch.no_grad()"
            )
        return losses, outputs

    def _penalties(self, penalty: Closure | None, outputs: Any) -> Tensor | None:
        """The sum of the given penalty and the registered ones `[N]`; each counts once."""
        given = {} if outputs is None else {"outputs": outputs}
        registered = [h for h in self.hooks if isinstance(h, Consolidation) and h.tasks]
        calls = {consolidation: consolidation.calls for consolidation in registered}
        parts = []
        if penalty is not None:
            parts.append(self.evaluate(penalty, "penalty", **given)[0])
        for consolidation in registered:
            included = consolidation.calls > calls[consolidation]
            if not included and (self.weigh_penalty or not consolidation.closed):
                parts.append(self.evaluate(consolidation.penalty, "penalty", **given)[0])
        return _sum(parts) if parts else None

    def _rates(self, energy: Tensor, closures: Sequence[Closure]) -> dict[Any, float | Tensor]:
        """The learning rates of parameters that may take their step inside the backward pass.

        Nobody else may read or change the gradient. A single particle uses `torch.optim.SGD`
        itself, so that N = 1 is SGD bit for bit.
        """
        read = self.weighting.reads == "slope" or self.max_grad_norm is not None
        read = read or any(getattr(hooks, "reads_gradients", True) for hooks in self.hooks)
        if read or len(closures) > 1 or not self.particles.runs_batched:
            return {}
        if not is_plain_descent(self.optimizer):
            return {}
        groups = self.optimizer.param_groups
        rates = {p: group["lr"] for group in groups for p in group["params"]}
        return {p: rates[p] for p in used_once(energy) if p in rates}

    @torch.no_grad()
    def _clip(self) -> None:
        """Scale each particle's gradient to a norm of at most `max_grad_norm`."""
        if self.max_grad_norm is None:
            return
        gradients = gradients_of(self.optimizer)
        norms = squared_norms(gradients).sqrt()
        clip = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(per_particle_view(clip.to(gradient.dtype), gradient))

    def _energy(
        self, closures: Sequence[Closure], penalty: Closure | None
    ) -> tuple[Tensor, Tensor]:
        """L(x_{t+1}), and the same with the penalty if it is weighed: `[N]`."""
        parts = []
        for closure in closures:
            losses, outputs = self.evaluate(closure)
            parts.append(losses)
        loss = _sum(parts)
        # the penalty follows the losses, as in the first evaluation, so that it draws the same
        penalties = self._penalties(penalty, outputs) if self.weigh_penalty else None
        return loss, loss if penalties is None else _sum([*parts, penalties])

    def recorded_settings(self) -> tuple[Any, ...]:
        penalties = [(h.tasks, h.closed) for h in self.hooks if isinstance(h, Consolidation)]
        seen = repr(self.weighting), self.max_grad_norm, self.weigh_penalty
        return *seen, self.registrations, len(self.hooks), *penalties

    def to(self, *args: Any, **options: Any) -> Any:
        super().to(*args, **options)
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() > 0:  # step counts stay where they are
                    state[name] = value.to(self.particles.device)
        for hooks in self.hooks:
            if isinstance(hooks, Consolidation):
                hooks.to(self.particles.device)
        return self

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "optimizer": copied(self.optimizer.state_dict())}

    def check_state(self, state: Mapping[str, Any]) -> None:
        super().check_state(state)
        check_state(self.optimizer, state["optimizer"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)
        # a copy: torch's optimizers keep the tensors they are given
        self.optimizer.load_state_dict(copied(state["optimizer"]))  # first: it may still raise
        super().load_state_dict(state)
        if self.particles.device.type != "cuda":
            for group in self.optimizer.param_groups:
                if "capturable" in group:
                    group["capturable"] = False  # a state from a GPU may be set up for recording


class Tangent:
    """Where the particles stood and their gradient there, to first order the loss around them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.parameters = moving(optimizer)
        self.start = [p.detach().clone() for p in self.parameters]
        self.gradients = [gradient.clone() for gradient in gradients_of(optimizer)]

    def slope(self) -> Tensor:
        """<gradient, x_new - x_old> per particle `[N]`, for the actual displacement, float64."""
        pairs = zip(self.parameters, self.start, strict=True)
        return inner_products(self.gradients, [p.detach() - start for p, start in pairs])


def moving(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The optimizer's parameters that have a gradient."""
    groups = optimizer.param_groups
    return [p for group in groups for p in group["params"] if p.grad is not None]


def gradients_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients of `moving`."""
    return [p.grad for p in moving(optimizer) if p.grad is not None]


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


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
        options: `min_ess`, `link`, `max_grad_norm`, `weigh_penalty`; see `GradientFilter`.

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
