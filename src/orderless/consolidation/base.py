"""What EWC, SI and LwF share: the hooks that filters call, saving, and a quadratic penalty."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..particles import Ensemble
from ..particles.pairs import Data
from ..particles.parameter import per_particle_view
from ..particles.stacking import check_same_shapes

Named = dict[str, Tensor]
# "kind", "tasks", and by the name of a group its tensors.
State = dict[str, str | int | Named]
# Columns of the networks' outputs, or several sets of them; None: all.
Columns = Tensor | Sequence[Tensor] | None


class Consolidation(ABC):
    """A penalty that holds every particle near what it was after earlier tasks.

    `penalty(x, outputs)` gives `[N]` and goes to `pf.step(closure, penalty=...)`;
    `pf.register(self)` has the two hooks called around every optimizer step; `begin_task` says
    which outputs belong to the past, `end_task(data)` closes a task. Particle i's penalty depends
    on particle i alone. Make it when the particles stand where training starts.

    `tasks` counts the tasks that have ended; before the first, penalties are zeros without a
    gradient. All tensors are changed in place and outlive the tasks, but a recorded step
    (`pf.compile`) keeps the Python it was recorded with: compile again after each `end_task`.
    """

    reads_gradients = False  # whether the hooks look at `.grad`, which must then be written out

    def __init__(self, particles: Ensemble, strength: float) -> None:
        if not isinstance(particles, Ensemble):
            raise TypeError(f"particles must be an ol.Ensemble, got {type(particles).__name__}")
        if not strength >= 0.0:
            raise ValueError(f"strength must be 0 or larger, got {strength}")
        self.particles, self.strength, self.tasks = particles, strength, 0
        self.parameters: dict[str, nn.Parameter] = {
            name: p for name, p in particles.named_parameters() if p.requires_grad
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}(strength={self.strength:g}, {self.tasks} tasks)"

    def before_update(self) -> None:  # noqa: B027
        """Called while gradients are set, before the optimizer moves the particles."""

    def after_update(self) -> None:  # noqa: B027
        """Called after the move, gradients still set."""

    def changed_by_update(self) -> Iterable[Tensor]:
        """What `after_update` changes `[N, ...]`: taken back where the step is."""
        return ()

    @abstractmethod
    def penalty(self, x: Tensor | None = None, outputs: Any = None) -> Tensor:
        """What the past asks of each particle: `[N]`. `x` is the batch, `outputs` what the
        particles say about it, with their graph, if somebody has computed that already."""

    def begin_task(  # noqa: B027
        self, active: Columns = None, seen: Tensor | None = None, scale: float = 1.0
    ) -> None:
        """How the past counts in the task to come; of use to a penalty on outputs, see `LwF`."""

    @abstractmethod
    def end_task(self, data: Data | None = None, active: Tensor | None = None) -> None:
        """Take in the task that was just learned."""

    # ------------------------------------------------------------------ for the methods

    def _zeros(self) -> Named:
        return {name: torch.zeros_like(p, requires_grad=False) for name, p in self._values()}

    def _values(self) -> list[tuple[str, Tensor]]:
        """Parameters as plain tensors: a copy of one is no parameter."""
        return [(name, p.data) for name, p in self.parameters.items()]

    def _no_penalty(self) -> Tensor:
        return torch.zeros(self.particles.shard.count, device=self.particles.device)

    @abstractmethod
    def _state(self) -> dict[str, Named]:
        """All tensors, in named groups; `load_state_dict` writes into them."""

    def state_dict(self) -> State:
        """Tensors and plain values, enough to go on in the middle of a task; see `ol.save`.

        Of a sharded ensemble all ranks ask, and the first gets the whole.
        """
        collect = self.particles.shard.collect
        groups = {
            group: {name: collect(tensor.detach().clone()) for name, tensor in tensors.items()}
            for group, tensors in self._state().items()
        }
        return {"kind": type(self).__name__, "tasks": self.tasks, **groups}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Take over a state; one of another method or model is refused before any change."""
        kind = state.get("kind")
        if kind != type(self).__name__:
            raise ValueError(f"this state is of a {kind}, not of a {type(self).__name__}")
        for group, tensors in self._state().items():
            shapes = {name: (self.particles.n, *t.shape[1:]) for name, t in tensors.items()}
            complaint = f"the {group!r} of this state is of another model"
            check_same_shapes(shapes, state.get(group), complaint)
        for group, tensors in self._state().items():
            saved = cast(Named, state[group])
            for name, tensor in tensors.items():
                tensor.copy_(self.particles.shard.local(saved[name]))
        self.tasks = cast(int, state["tasks"])


class QuadraticConsolidation(Consolidation):
    """A penalty 1/2 sum c (theta - m)^2: filters' steps apply it in closed form, or its gradient.

    `pf.register(self)` says which. Where steps are closed it is enough; `penalty` that goes to
    `pf.step` besides is reported and weighed, and has no gradient while the step is taken. With
    sigma^2 the learning rate and g the gradient of the loss the closed step is

        theta <- (theta - sigma^2 g + sigma^2 c m) / (1 + sigma^2 c)

    which overshoots at no strength; the step along the gradient does where sigma^2 c > 2. The two
    differ by sigma^4 c g + O(c^2).
    """

    closed = False  # whether a step is being taken that is closed for this penalty
    importance: Named
    center: Named

    @property
    def holds(self) -> bool:
        """Whether there is a past to hold on to."""
        return self.tasks > 0

    def anchor(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor] | None:
        """(c, m) of these particles' parameter `[N, ...]`; None where nothing holds it."""
        for name, own in self.parameters.items():
            if own is parameter:
                return self._curvature(name), self.center[name]
        return None

    @abstractmethod
    def _curvature(self, name: str) -> Tensor:
        """c, nowhere negative."""

    def _squares(self) -> Tensor:
        """sum over all parameters of importance * (theta - center)^2, for each particle: `[N]`."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.closed):
            parts = [
                _Quadratic.apply(p, self.importance[name], self.center[name])
                for name, p in self.parameters.items()
            ]
            return torch.stack(parts).sum(0)


class _Quadratic(torch.autograd.Function):
    """sum a (theta - c)^2 per particle. Keeps nothing for the backward pass but its inputs."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, importance: Tensor, center: Tensor) -> Tensor:
        ctx.save_for_backward(theta, importance, center)
        distance = (theta - center).flatten(1) if theta.dim() > 1 else (theta - center)[:, None]
        return (distance.square() * importance.reshape(distance.shape)).sum(1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        theta, importance, center = ctx.saved_tensors
        slope = (theta - center).mul_(importance)
        return slope.mul_(per_particle_view(2.0 * grads[0], theta)), None, None
