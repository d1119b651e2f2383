"""The learner of the Gaussian-sum filter: losses are sums, and outputs are returned with them."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ...filters import GaussianSumFilter, StepInfo
from .filtered import Learner


class GaussianSumLearner(Learner):
    """`Learner` for a filter that accumulates precision.

    The filter adds each batch's curvature to the precision of its Gaussians, so the loss must be
    the negative log-likelihood of the batch, the *sum* of its samples' cross-entropies: B times
    the mean that the other methods descend. At the first step, P = I / sigma^2 and H = 0, that is
    a learning rate of B sigma^2 on the mean. Traces hold the mean, as for every other method.

    The closure also returns the networks' outputs: the curvature is then the generalised
    Gauss-Newton matrix, which is positive semidefinite.
    """

    filter: GaussianSumFilter

    def begin_task(self, seen: Sequence[int]) -> None:
        super().begin_task(seen)
        # eager: factorising the curvature reads from the host, which a recording cannot
        self._fast = lambda *batch: self.filter.step(lambda: self._likelihood(*batch))

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepInfo:
        info = super().learn(x, y, task)
        return replace(info, loss_before=info.loss_before / len(y))

    def _likelihood(self, x: Tensor, y: Tensor, task: Tensor) -> tuple[Tensor, Tensor]:
        losses, outputs = self._loss(x, y, task)
        return len(y) * losses, outputs
