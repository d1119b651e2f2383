r"""Learning without forgetting: on new data, keep the outputs of the network before the task.

Li, Hoiem 2016 (arXiv:1606.09282). With t the class scores of the network as it was at the end of
the last task (the teacher), s its scores now (the student), and T the temperature,

    KD = -1/B sum_b sum_c softmax(t_b / T)_c log softmax(s_b / T)_c

without a factor T^2. Its gradient is 0 where s = t. Each particle has its own teacher.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ensemble import Ensemble
from .base import Columns, Consolidation, Data, Named


class LwF(Consolidation):
    """Distillation of every particle from its own state after the last task.

    How van de Ven et al. (2022) use it in the k-th task (`lwf.tasks` is k - 1):

    - domain-incremental, CE + (k-1) KD: `begin_task(scale=lwf.tasks)`;
    - task-incremental, the old heads' KD summed: `begin_task([columns_1, columns_2, ...])`;
    - class-incremental, CE + KD: `begin_task(old_columns, seen=columns_so_far)`, where the
      student's probabilities include the new classes and the teacher's are 0 there.

    Memory, in units of the ensemble's parameters: 1 (the teacher; its buffers too), and the
    activations of the passes. The teacher runs in evaluation mode.

    Args:
        strength: multiplies the penalty.
        temperature: T.
        logits: picks the class scores `[N, B, C]` out of outputs that are more than one tensor.

    >>> import torch, orderless as ol
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(2, 2), n=3)
    >>> pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    >>> lwf = ol.LwF(particles)
    >>> pf.register(lwf)
    >>> loss = ol.per_particle(torch.nn.functional.cross_entropy)
    >>> for x in torch.randn(2, 16, 2):  # two tasks
    ...     y = (x[:, 0] > 0).long()
    ...     info = pf.step(lambda: loss(particles(x), y))
    ...     lwf.end_task()
    >>> info.penalty.shape
    torch.Size([3])
    """

    def __init__(
        self,
        particles: Ensemble,
        strength: float = 1.0,
        temperature: float = 2.0,
        *,
        logits: Callable[[Any], Tensor] | None = None,
    ) -> None:
        super().__init__(particles, strength)
        if not temperature > 0.0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature = temperature
        self.logits = logits
        self.teacher = copy.deepcopy(particles).requires_grad_(False).eval()
        self.teacher._forward_pre_hooks.clear()  # of another penalty on these particles
        self.begin_task()
        self._last_inputs: tuple[Any, Any] | None = None  # (args, kwargs) of the particles

    def attach(self, optimizer: torch.optim.Optimizer, closed: bool | None) -> None:
        """Distil on the inputs that the particles saw last in the closure."""
        super().attach(optimizer, closed)
        if self._last_inputs is None:
            self._last_inputs = (), {}
            self.particles.register_forward_pre_hook(self._remember, with_kwargs=True)

    def _remember(self, module: Any, args: Any, kwargs: Any) -> None:
        self._last_inputs = args, kwargs

    def begin_task(
        self, active: Columns = None, seen: Tensor | None = None, scale: float = 1.0
    ) -> None:
        """Set how the penalty counts in the coming task.

        Args:
            active: the teacher's output columns; for several sets, the KD terms are summed; None:
                all.
            seen: the columns over which the student's probabilities sum to 1, a superset of
                `active`; None: the same as `active`.
            scale: another factor.
        """
        self.columns: Sequence[Tensor | None]
        self.columns = [active] if active is None or isinstance(active, Tensor) else active
        self.seen = seen
        self.scale = scale

    def energy(self, x: Tensor | None = None, outputs: Any = None) -> Tensor:
        """strength * scale * KD of each particle on the inputs x `[B, ...]`: `[N]`.

        Args:
            x: None: the inputs that the particles saw last, if `pf.register(self)` was called.
            outputs: the particles' outputs on x, with their graph, if the loss has computed them
                already (return `(losses, outputs)` from the closure). Otherwise the particles run
                again, without a change of their buffers.
        """
        args, kwargs = ((x,), {}) if x is not None else self._last_inputs or ((), {})
        if not args:
            raise ValueError(
                "LwF needs the inputs of the batch: penalty(x, ...), or pf.register(lwf)"
            )
        with torch.no_grad():
            teacher = self._scores(self.teacher(*args, **kwargs))
        if outputs is None:
            with self.particles.replay():  # no buffer may count the batch twice in one step
                outputs = self.particles(*args, **kwargs)
        student = self._scores(outputs)
        terms = [self._distillation(teacher, student, columns) for columns in self.columns]
        return self.strength * self.scale * torch.stack(terms).sum(0)

    def _distillation(self, teacher: Tensor, student: Tensor, columns: Tensor | None) -> Tensor:
        """KD of each particle over some columns: `[N]`."""
        every = student if self.seen is None else student.index_select(-1, self.seen)
        if columns is not None:
            teacher = teacher.index_select(-1, columns)
            student = student.index_select(-1, columns)
            every = student if self.seen is None else every
        # log softmax over `seen`, at the columns
        level = torch.logsumexp(every / self.temperature, -1, keepdim=True)
        log_student = student / self.temperature - level
        target = torch.softmax(teacher / self.temperature, -1)
        return -(target * log_student).sum(-1).flatten(1).mean(1)

    def _scores(self, outputs: Any) -> Tensor:
        scores = outputs if self.logits is None else self.logits(outputs)
        return scores if scores.dtype == torch.float64 else scores.float()

    @torch.no_grad()
    def end_task(self, data: Data | None = None, active: Tensor | None = None) -> None:
        """Make the particles in their present state the teachers. Needs no data."""
        now = self.particles.tensors()
        if {t.dtype for t in now.values()} != {t.dtype for t in self.teacher.tensors().values()}:
            raise TypeError("the particles' type has changed since this LwF was made: make it anew")
        for name, tensor in self.teacher.tensors().items():
            tensor.copy_(now[name])
        self.tasks += 1

    def to(self, device: torch.device) -> None:
        self.teacher.to(device)

    def _state(self) -> dict[str, Named]:
        return {"teacher": self.teacher.tensors()}
