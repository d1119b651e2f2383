"""Penalties that stand for earlier data (EWC, SI, LwF): the terms of a step's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..consolidation.base import Consolidation
from .base import Closure, total

if TYPE_CHECKING:
    from .gradient import GradientFilter


class UpdateHooks(Protocol):
    """What `register` takes besides penalties: called around `optimizer.step()`."""

    def before_update(self) -> None: ...
    def after_update(self) -> None: ...


def attach(hooks: UpdateHooks, optimizer: torch.optim.Optimizer, closed: bool | None) -> None:
    """Tell a penalty which optimizer it meets, and whether to take a closed step after it."""
    if isinstance(hooks, Consolidation):
        hooks.attach(optimizer, closed)


def move_penalties(hooks: Sequence[UpdateHooks], device: torch.device) -> None:
    """Move the penalties' tensors to a device."""
    for penalty in hooks:
        if isinstance(penalty, Consolidation):
            penalty.to(device)


def recorded(hooks: Sequence[UpdateHooks]) -> list[tuple[int, bool]]:
    """What a recorded step depends on: numbers of finished tasks, and who takes closed steps."""
    return [(h.tasks, h.closed) for h in hooks if isinstance(h, Consolidation)]


def penalty_sum(owner: GradientFilter, penalty: Closure | None, outputs: Any) -> Tensor | None:
    """The sum of a step's `penalty=` and the registered penalties `[N]`; each counts once."""
    given = {} if outputs is None else {"outputs": outputs}
    registered = [h for h in owner.hooks if isinstance(h, Consolidation) and h.tasks]
    calls = {consolidation: consolidation.calls for consolidation in registered}
    parts = []
    if penalty is not None:
        parts.append(owner.evaluate(penalty, "penalty", **given)[0])
    for consolidation in registered:
        included = consolidation.calls > calls[consolidation]
        if not included and (owner.weigh_penalty or not consolidation.closed):
            parts.append(owner.evaluate(consolidation.penalty, "penalty", **given)[0])
    return total(parts) if parts else None
