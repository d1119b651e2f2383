"""Base classes of EWC, SI and LwF: hooks for filters, saving, and a quadratic penalty."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..ensemble.stacking import check_same_shapes

Named = dict[str, Tensor]
State = dict[str, str | int | Named]  # "kind", "tasks", and named groups of tensors
Columns = Tensor | Sequence[Tensor] | None  # output columns, or several sets of them; None: all
# what `end_task` takes: two tensors (x, y), or batches of such pairs
Data = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
EXPECTED = (
    "data must be two tensors (x, y) with as many labels as samples, or batches of such pairs as "
    "a DataLoader gives them"
)


class Consolidation(ABC):
    """A penalty that keeps every particle near its state after earlier tasks.

    `pf.register(self)` applies it in every step; or pass `penalty(x, outputs)`, which returns
    `[N]`, to `pf.step(closure, penalty=...)`. `begin_task` selects the outputs of earlier tasks,
    and `end_task(data)` ends a task. Particle i's penalty depends on particle i alone. Create the
    penalty when the particles are where training starts.

    `tasks` counts the tasks that have ended; before the first, penalties are zeros without a
    gradient. All tensors are updated in place and kept across tasks. Subclasses define `energy`,
    `end_task` and `_state`, and the hooks if they need them.

    >>> import torch, orderless as ol
    >>> class NearStart(ol.Consolidation):  # pulls every particle to where it began
    ...     def __init__(self, particles, strength):
    ...         super().__init__(particles, strength)
    ...         self.start = {name: p.detach().clone() for name, p in self.parameters.items()}
    ...     def energy(self, x=None, outputs=None):
    ...         moved = [(p - self.start[name]).flatten(1) for name, p in self.parameters.items()]
    ...         return self.strength * torch.cat(moved, 1).square().sum(1)
    ...     def end_task(self, data=None, active=None):
    ...         self.tasks += 1
    ...     def _state(self):
    ...         return {"start": self.start}
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(2, 1), n=3)
    >>> NearStart(particles, 1.0).penalty()
    tensor([0., 0., 0.])
    """

    reads_gradients = False  # whether the hooks read `.grad`, which must then be written out
    closed = False  # whether `after_update` applies the penalty, which then has no gradient

    def __init__(self, particles: Ensemble, strength: float) -> None:
        if not isinstance(particles, Ensemble):
            raise TypeError(f"particles must be an ol.Ensemble, got {type(particles).__name__}")
        if not strength >= 0.0:
            raise ValueError(f"strength must be 0 or larger, got {strength}")
        self.particles = particles
        self.strength = strength
        self.tasks = 0
        self.calls = 0  # of `penalty`
        self.parameters: dict[str, nn.Parameter] = {
            name: p for name, p in particles.named_parameters() if p.requires_grad
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}(strength={self.strength:g}, {self.tasks} tasks)"

    def attach(self, optimizer: torch.optim.Optimizer, closed: bool | None) -> None:
        """Called by `pf.register` with the filter's optimizer."""
        if closed:
            raise ValueError(f"a {type(self).__name__} has no closed step: closed=None")

    def before_update(self) -> None:  # noqa: B027
        """Called while gradients are set, before the optimizer moves the particles."""

    def after_update(self) -> None:  # noqa: B027
        """Called after the move, gradients still set."""

    def penalty(self, x: Tensor | None = None, outputs: Any = None) -> Tensor:
        """The penalty of each particle: `[N]`.

        `x` is the batch, `outputs` the particles' outputs on it with their graph, if known.
        """
        self.calls += 1
        if not self.tasks:
            return torch.zeros(self.particles.n, device=self.particles.device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.closed):
            return self.energy(x, outputs)

    @abstractmethod
    def energy(self, x: Tensor | None = None, outputs: Any = None) -> Tensor:
        """The penalty of each particle after the first task: `[N]`."""

    def begin_task(  # noqa: B027
        self, active: Columns = None, seen: Tensor | None = None, scale: float = 1.0
    ) -> None:
        """Set how earlier tasks count in the coming task; used by penalties on outputs (`LwF`)."""

    @abstractmethod
    def end_task(self, data: Data | None = None, active: Tensor | None = None) -> None:
        """Add the task that was just learned to the penalty."""

    @abstractmethod
    def _state(self) -> dict[str, Named]:
        """All tensors, in named groups, into which `load_state_dict` writes."""

    def to(self, device: torch.device) -> None:
        """Move the penalty's tensors to a device; `pf.to(device)` calls this."""
        for tensors in self._state().values():
            for tensor in tensors.values():
                tensor.data = tensor.data.to(device)

    def state_dict(self) -> State:
        """Tensors and plain values, enough to resume in the middle of a task; see `ol.save`."""
        groups = {
            group: {name: tensor.detach().clone() for name, tensor in tensors.items()}
            for group, tensors in self._state().items()
        }
        return {"kind": type(self).__name__, "tasks": self.tasks, **groups}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Load a state; one of another method or model is refused before any change."""
        kind = state.get("kind")
        tasks = state.get("tasks")
        if kind != type(self).__name__:
            raise ValueError(f"this state is of a {kind}, not of a {type(self).__name__}")
        if not isinstance(tasks, int) or tasks < 0:
            raise ValueError(f"this state must count its tasks from 0 on, got tasks={tasks!r}")
        for group, tensors in self._state().items():
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            complaint = f"the {group!r} of this state is of another model"
            check_same_shapes(shapes, state.get(group), complaint)
        for group, tensors in self._state().items():
            saved = cast(Named, state[group])
            for name, tensor in tensors.items():
                tensor.copy_(saved[name])
        self.tasks = tasks


class QuadraticConsolidation(Consolidation):
    """A penalty 1/2 sum c (theta - m)^2, applied by filters in closed form or by its gradient.

    With sigma^2 the learning rate of SGD and g the gradient of the loss, the closed step is

        theta <- (theta - sigma^2 g + sigma^2 c m) / (1 + sigma^2 c)

    which does not overshoot at any strength; the gradient step does where sigma^2 c > 2. The two
    differ by sigma^4 c g + O(c^2). With momentum sigma^2 is what a unit of gradient moves a
    parameter by in the long run, so that steps converge to the minimum of loss + penalty.
    """

    importance: Named
    center: Named
    optimizer: torch.optim.Optimizer | None = None

    def attach(self, optimizer: torch.optim.Optimizer, closed: bool | None) -> None:
        descends = type(optimizer) is torch.optim.SGD
        descends = descends and not any(group["maximize"] for group in optimizer.param_groups)
        if closed and not descends:
            raise ValueError(
                f"closed steps are those of descent by torch.optim.SGD, got a "
                f"{type(optimizer).__name__}: pass closed=False"
            )
        self.closed = descends if closed is None else closed
        self.optimizer = optimizer

    @torch.no_grad()
    def after_update(self) -> None:
        """In a closed step: theta <- theta + k (m - theta), k = sigma^2 c / (1 + sigma^2 c)."""
        if not self.closed or not self.tasks or self.optimizer is None:
            return
        names = {parameter: name for name, parameter in self.parameters.items()}
        for group in self.optimizer.param_groups:
            variance = group["lr"]
            if group["momentum"]:
                variance = variance * (1 - group["dampening"]) / (1 - group["momentum"])
            for parameter in group["params"]:
                if parameter in names and parameter.requires_grad:
                    name = names[parameter]
                    # also where c is 0 or overflows
                    gain = 1 / (1 + 1 / (variance * self._curvature(name)))
                    parameter.lerp_(self.center[name], gain)

    @abstractmethod
    def _curvature(self, name: str) -> Tensor:
        """c of one parameter, nowhere negative."""

    def _squares(self) -> Tensor:
        """sum over all parameters of importance * (theta - center)^2, for each particle: `[N]`."""
        parts = []
        for name, parameter in self.parameters.items():
            importance = self.importance[name]
            if importance.dtype != parameter.dtype:
                raise TypeError(
                    f"the particles are {parameter.dtype} now and this {type(self).__name__} was "
                    f"made for {importance.dtype}: make it after changing the type"
                )
            square = importance * (parameter - self.center[name]).square()
            parts.append(square.reshape(len(square), -1).sum(1))
        return torch.stack(parts).sum(0)


def is_pair(data: object) -> bool:
    return isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], Tensor)


def pairs(data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over the pairs and check each."""
    if isinstance(data, Tensor) or not isinstance(data, Iterable):
        raise TypeError(f"{EXPECTED}, got {_shape(data)}")
    for batch in [data] if is_pair(data) else data:
        tensors = [t for t in batch if isinstance(t, Tensor) and t.dim()] if is_pair(batch) else []
        if len(tensors) != 2 or len(tensors[0]) != len(tensors[1]):
            raise ValueError(f"{EXPECTED}, got {_shape(batch)}")
        yield tensors[0], tensors[1]


def _shape(found: object) -> str:
    if isinstance(found, Tensor):
        return f"a tensor of shape {list(found.shape)}"
    if isinstance(found, (tuple, list)):
        return f"({', '.join(map(_shape, found))})"
    return type(found).__name__
