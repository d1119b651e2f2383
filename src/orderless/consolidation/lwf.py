r"""Learning without forgetting: on new data, keep the outputs of the network before the task.

Li, Hoiem 2016 (arXiv:1606.09282). With t the class scores of the network as it was at the end of
the last task (the teacher), s its scores now (the student), and T the temperature,

    KD = -1/B sum_b sum_c softmax(t_b / T)_c log softmax(s_b / T)_c

without a factor T^2. Its gradient is 0 where s = t. Each particle has its own teacher.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ensemble import Ensemble
from .base import Columns, Consolidation, Data, Named


class LwF(Consolidation):
    """Distillation of every particle from its own state after the last task.

    How van de Ven et al. (2022) use it in the k-th task (`lwf.tasks` is k - 1):

    - domain-incremental, CE + (k-1) KD: `penalty(x, scale=lwf.tasks)`;
    - task-incremental, the old heads' KD summed: `penalty(x, active=[columns_1, columns_2, ...])`;
    - class-incremental, CE + KD: `penalty(x, active=old_columns, seen=columns_so_far)`, where the
      student's probabilities include the new classes and the teacher's are 0 there.

    `begin_task(active, seen, scale)` sets these for all penalties of a task.

    Memory, in units of the ensemble's parameters: 1 (the teacher; its buffers too), and the
    activations of the passes. The teacher runs in evaluation mode.

    Args:
        strength: multiplies the penalty.
        temperature: T.
        logits: picks the class scores `[N, B, C]` out of outputs that are more than one tensor.
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
        self.temperature, self.logits = temperature, logits
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
        """Set the defaults of `active`, `seen` and `scale` for `penalty` in this task."""
        self.active, self.seen, self.scale = active, seen, scale

    def energy(
        self,
        x: Tensor | None = None,
        outputs: Any = None,
        active: Columns = None,
        seen: Tensor | None = None,
        scale: float | None = None,
        **options: Any,
    ) -> Tensor:
        """strength * scale * KD of each particle on the inputs x `[B, ...]`: `[N]`.

        Args:
            x: None: the inputs that the particles saw last, if `pf.register(self)` was called.
            outputs: the particles' outputs on x, with their graph, if the loss has computed them
                already (return `(losses, outputs)` from the closure). Otherwise the particles run
                again, without a change of their buffers.
            active: the teacher's output columns; for several sets, the KD terms are summed; None:
                all.
            seen: the columns over which the student's probabilities sum to 1, a superset of
                `active`; None: the same as `active`.
            scale: another factor.
        """
        inputs: Any = ((x,), {})
        if x is None:
            if not self._last_inputs or not self._last_inputs[0]:
                raise ValueError(
                    "LwF needs the inputs of the batch: penalty(x, ...), or pf.register(lwf)"
                )
            inputs = self._last_inputs
        if active is None and seen is None:
            active = self.active
            seen = self.seen
        scale = self.scale if scale is None else scale
        args, kwargs = inputs
        with torch.no_grad():
            teacher = self._scores(self.teacher(*args, **kwargs))
        if outputs is None:
            with self.particles.replay():  # no buffer may count the batch twice in one step
                outputs = self.particles(*args, **kwargs)
        student = self._scores(outputs)
        columns = [active] if active is None or isinstance(active, Tensor) else list(active)
        terms = [self._distillation(teacher, student, old, seen) for old in columns]
        return self.strength * scale * torch.stack(terms).sum(0)

    def _distillation(
        self, teacher: Tensor, student: Tensor, old: Tensor | None, seen: Tensor | None
    ) -> Tensor:
        """KD of each particle: `[N]`."""
        spread = student if seen is None else student.index_select(-1, seen)
        if old is not None:
            teacher, student = teacher.index_select(-1, old), student.index_select(-1, old)
            spread = student if seen is None else spread
        # log softmax over `seen`, at the columns `old`
        level = torch.logsumexp(spread / self.temperature, -1, keepdim=True)
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
