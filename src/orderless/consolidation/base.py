"""Base classes of EWC, SI and LwF: hooks for filters, saving, and a quadratic penalty."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..ensemble.pairs import Data
from ..ensemble.parameter import per_particle_view
from ..ensemble.stacking import check_same_shapes

Named = dict[str, Tensor]
State = dict[str, str | int | Named]  # "kind", "tasks", and named groups of tensors
Columns = Tensor | Sequence[Tensor] | None  # output columns, or several sets of them; None: all


class Consolidation(ABC):
    """A penalty that keeps every particle near its state after earlier tasks.

    `penalty(x, outputs)` returns `[N]`; pass it to `pf.step(closure, penalty=...)`.
    `pf.register(self)` calls the two hooks around every optimizer step, `begin_task` selects the
    outputs of earlier tasks, and `end_task(data)` ends a task. Particle i's penalty depends on
    particle i alone. Create the penalty when the particles are where training starts.

    `tasks` counts the tasks that have ended; before the first, penalties are zeros without a
    gradient. All tensors are updated in place and kept across tasks, but a recorded step
    (`pf.compile`) contains the Python it was recorded with: compile again after each `end_task`.
    """

    reads_gradients = False  # whether the hooks read `.grad`, which must then be written out

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
        """The tensors `[N, ...]` that `after_update` changes; an undone step restores them."""
        return ()

    @abstractmethod
    def penalty(self, x: Tensor | None = None, outputs: Any = None) -> Tensor:
        """The penalty of each particle: `[N]`.

        `x` is the batch, `outputs` the particles' outputs on it with their graph, if known.
        """

    def begin_task(  # noqa: B027
        self, active: Columns = None, seen: Tensor | None = None, scale: float = 1.0
    ) -> None:
        """Set how earlier tasks count in the coming task; used by penalties on outputs (`LwF`)."""

    @abstractmethod
    def end_task(self, data: Data | None = None, active: Tensor | None = None) -> None:
        """Add the task that was just learned to the penalty."""

    def _zeros(self) -> Named:
        return {name: torch.zeros_like(p, requires_grad=False) for name, p in self._values()}

    def _values(self) -> list[tuple[str, Tensor]]:
        """Parameters as plain tensors, so that copies of them are not parameters."""
        return [(name, p.data) for name, p in self.parameters.items()]

    def _no_penalty(self) -> Tensor:
        return torch.zeros(self.particles.shard.count, device=self.particles.device)

    @abstractmethod
    def _state(self) -> dict[str, Named]:
        """All tensors, in named groups, into which `load_state_dict` writes."""

    def state_dict(self) -> State:
        """Tensors and plain values, enough to resume in the middle of a task; see `ol.save`.

        With a sharded ensemble all ranks call this, and the first gets the whole state.
        """
        collect = self.particles.shard.collect
        groups = {
            group: {name: collect(tensor.detach().clone()) for name, tensor in tensors.items()}
            for group, tensors in self._state().items()
        }
        return {"kind": type(self).__name__, "tasks": self.tasks, **groups}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Load a state; one of another method or model is refused before any change."""
        kind, tasks = state.get("kind"), state.get("tasks")
        if kind != type(self).__name__:
            raise ValueError(f"this state is of a {kind}, not of a {type(self).__name__}")
        if not isinstance(tasks, int) or tasks < 0:
            raise ValueError(f"this state must count its tasks from 0 on, got tasks={tasks!r}")
        for group, tensors in self._state().items():
            shapes = {name: (self.particles.n, *t.shape[1:]) for name, t in tensors.items()}
            complaint = f"the {group!r} of this state is of another model"
            check_same_shapes(shapes, state.get(group), complaint)
        for group, tensors in self._state().items():
            saved = cast(Named, state[group])
            for name, tensor in tensors.items():
                tensor.copy_(self.particles.shard.local(saved[name]))
        self.tasks = tasks


class QuadraticConsolidation(Consolidation):
    """A penalty 1/2 sum c (theta - m)^2, applied by filters in closed form or by its gradient.

    `pf.register(self)` selects which. For closed steps that call is enough: a `penalty` also passed
    to `pf.step` is reported and weighed, and has no gradient while the step is taken. With sigma^2
    the learning rate and g the gradient of the loss, the closed step is

        theta <- (theta - sigma^2 g + sigma^2 c m) / (1 + sigma^2 c)

    which does not overshoot at any strength; the gradient step does where sigma^2 c > 2. The two
    differ by sigma^4 c g + O(c^2).
    """

    closed = False  # whether the current step is closed for this penalty
    importance: Named
    center: Named

    @property
    def holds(self) -> bool:
        """Whether a task has ended, so that the penalty is not 0."""
        return self.tasks > 0

    def anchor(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor] | None:
        """(c, m) of these particles' parameter `[N, ...]`; None if the penalty ignores it."""
        for name, own in self.parameters.items():
            if own is parameter:
                return self._curvature(name), self.center[name]
        return None

    @abstractmethod
    def _curvature(self, name: str) -> Tensor:
        """c of one parameter, nowhere negative."""

    def _squares(self) -> Tensor:
        """sum over all parameters of importance * (theta - center)^2, for each particle: `[N]`."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.closed):
            parts = [
                _Quadratic.apply(p, self.importance[name], self.center[name])
                for name, p in self.parameters.items()
            ]
            return torch.stack(parts).sum(0)


class _Quadratic(torch.autograd.Function):
    """sum a (theta - c)^2 per particle; saves only its inputs for the backward pass."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, importance: Tensor, center: Tensor) -> Tensor:
        ctx.save_for_backward(theta, importance, center)
        distance = (theta - center).reshape(len(theta), -1)
        return (distance.square() * importance.reshape(distance.shape)).sum(1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        theta, importance, center = ctx.saved_tensors
        slope = (theta - center).mul_(importance)
        return slope.mul_(per_particle_view(2.0 * grads[0], theta)), None, None
