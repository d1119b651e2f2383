"""Filters with an optimizer: penalties, gradients, checks and states of any optimizer."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ..consolidation.base import Consolidation
from ..ensemble import Ensemble
from ..ensemble.stacking import inner_products, per_particle_view, squared_norms
from .base import Closure, ParticleFilter, copied, total

# They use statistics of a whole tensor, which would mix the steps of stacked networks.
WHOLE_TENSORS = (torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Muon)


class UpdateHooks(Protocol):
    """What `register` takes besides penalties: called around `optimizer.step()`."""

    def before_update(self) -> None: ...
    def after_update(self) -> None: ...


class OptimizedFilter(ParticleFilter):
    """A filter whose particles are moved by an optimizer, with penalties for earlier data."""

    plain_state = ("seed", "optimizer")
    weighting: Any
    weigh_penalty: bool

    def __init__(
        self, particles: Ensemble, optimizer: torch.optim.Optimizer, **options: Any
    ) -> None:
        super().__init__(particles, **options)
        check_optimizer(optimizer, particles)
        self.optimizer = optimizer
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
        if closed is None and self.weigh_penalty and self.weighting.reads == "slope":
            closed = False  # the weights need the penalty's gradient
        if isinstance(hooks, Consolidation):
            hooks.attach(self.optimizer, closed)
        if hooks not in self.hooks:
            self.hooks.append(hooks)
        self.registrations += 1

    @property
    def penalties(self) -> list[Consolidation]:
        """The penalties among the hooks."""
        return [hooks for hooks in self.hooks if isinstance(hooks, Consolidation)]

    def penalty_sum(self, penalty: Closure | None, outputs: Any) -> Tensor | None:
        """The sum of a step's `penalty=` and the registered penalties `[N]`; each counts once."""
        if penalty is None and not self.hooks:
            return None
        given = {} if outputs is None else {"outputs": outputs}
        registered = [consolidation for consolidation in self.penalties if consolidation.tasks]
        calls = {consolidation: consolidation.calls for consolidation in registered}
        parts = []
        if penalty is not None:
            parts.append(self.evaluate(penalty, "penalty", **given)[0])
        for consolidation in registered:
            included = consolidation.calls > calls[consolidation]
            if not included and (self.weigh_penalty or not consolidation.closed):
                parts.append(self.evaluate(consolidation.penalty, "penalty", **given)[0])
        return total(parts) if parts else None

    def recorded_settings(self) -> tuple[Any, ...]:
        penalties = [(penalty.tasks, penalty.closed) for penalty in self.penalties]
        return self.registrations, len(self.hooks), *penalties

    def to(self, *args: Any, **options: Any) -> Any:
        super().to(*args, **options)
        device = self.particles.device
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() > 0:  # step counts stay where they are
                    state[name] = value.to(device)
        for penalty in self.penalties:
            penalty.to(device)
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


def check_optimizer(optimizer: torch.optim.Optimizer, particles: Ensemble) -> None:
    """Raise if an optimizer cannot move these particles independently of each other."""
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


def clear_gradients(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.zero_grad()`, which takes ten times as long for small networks."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()`; not where everything has moved already and nobody wraps `step`."""
    if moving(optimizer) or "step" in vars(optimizer) or type(optimizer) is not torch.optim.SGD:
        optimizer.step()


def moving(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters that have a gradient."""
    groups = optimizer.param_groups
    return [p for group in groups for p in group["params"] if p.grad is not None]


def gradients_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients of `moving`."""
    return [p.grad for p in moving(optimizer) if p.grad is not None]


@torch.no_grad()
def clip_gradients(optimizer: torch.optim.Optimizer, max_norm: float | None) -> None:
    """Scale each particle's gradient to a norm of at most `max_norm`."""
    if max_norm is None:
        return
    gradients = gradients_of(optimizer)
    norms = squared_norms(gradients).sqrt()
    clip = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(per_particle_view(clip.to(gradient.dtype), gradient))


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


def check_state(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Raise `ValueError` if a state is not of such an optimizer over these parameters."""
    sizes = [tuple(p.shape) for group in optimizer.param_groups for p in group["params"]]
    fits = _outline(state) == _outline(optimizer.state_dict())
    for number, values in state["state"].items() if fits else ():
        for value in values.values() if isinstance(number, int) else ():  # TRAC checks its own
            fits &= not isinstance(value, Tensor) or tuple(value.shape) in ((), sizes[number])
    if not fits:
        raise ValueError(
            f"this state is of another optimizer than {type(optimizer).__name__} "
            "over these parameters: its parameter groups or tensors differ"
        )


def _outline(state: Any) -> list[tuple[set[str], int]]:
    """The names of the options of each group, and its number of parameters."""
    return [(set(group), len(group["params"])) for group in state["param_groups"]]
