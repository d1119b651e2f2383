"""The learner of the product of task posteriors: its loss, and the outputs in it."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orderless.ensemble import Ensemble
from orderless.product import PosteriorProduct

from ...suites.scenario import Scenario
from .learner import Learner

LOSSES = ("squared", "cross-entropy")


class ProductLearner(Learner):
    """`Learner` for a filter whose tasks are independent.

    A task's loss includes all outputs, whichever classes came before; if task identities are given
    (task-incremental), only the task's own. `loss` is squared error against 0 and 1 (half its sum
    over outputs) or cross-entropy, both as the mean over a batch.
    """

    filter: PosteriorProduct  # type: ignore[assignment]

    def __init__(self, scenario: Scenario, filter: PosteriorProduct, loss: str = "squared") -> None:
        super().__init__(scenario, filter)  # type: ignore[arg-type]
        if loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
        self.squared = loss == "squared"
        self._own = torch.ones(scenario.outputs, dtype=torch.bool, device=scenario.device)

    def begin_task(self, seen: Sequence[int]) -> None:
        self.seen = list(seen)
        if self.scenario.kind == "task":
            self._own.fill_(False)
            self._own[self.scenario.active(self.seen, self.seen[-1])] = True
        if self._fast is None:
            self._fast = self.filter.compile(self._loss)

    def _loss(self, x: Tensor, y: Tensor, task: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.filter.particles(x)
        return self._losses(outputs, y).mean(1), outputs

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Losses `[N, B]` of every particle and sample."""
        outputs = outputs if outputs.dtype == torch.float64 else outputs.float()
        if self.squared:
            return squared_errors(outputs, y, self._own)
        log_p = outputs.masked_fill(~self._own, -torch.inf).log_softmax(-1)
        return -log_p.gather(-1, y.expand(len(outputs), -1).unsqueeze(-1)).squeeze(-1)

    def end_task(self) -> None:
        """Add the task to the product."""
        data = self.scenario.train_set(self.seen[-1])
        self.filter.end_task(data, active=self._own.nonzero().flatten())


def squared_errors(outputs: Tensor, y: Tensor, columns: Tensor | None = None) -> Tensor:
    """1/2 |output - target|^2 `[N, B]`, targets 0 and 1, over all or some columns."""
    errors = (outputs - F.one_hot(y, outputs.shape[-1]).to(outputs.dtype)).square()
    return 0.5 * (errors if columns is None else errors * columns).sum(-1)


@torch.no_grad()
def zero_head(particles: Ensemble) -> list[Tensor]:
    """Set the last Linear layer to zero and return its parameters."""
    layers = particles.template.named_modules()
    *_, head = (name for name, module in layers if isinstance(module, nn.Linear))
    return [parameter.zero_() for parameter in particles.get_submodule(head).parameters()]
