"""The Gaussian-sum filter at work in a scenario: losses that are sums, and outputs beside them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...filters import GaussianSumFilter, StepInfo
from .filtered import Learner


class GaussianSumLearner(Learner):
    """`Learner` for a filter that counts precision.

    The filter adds each batch's curvature to the precision of its Gaussians, so the loss must be
    the negative log-likelihood of the batch, the *sum* of its samples' cross-entropies: B times
    the mean that the other methods descend. At the first step, P = I / sigma^2 and H = 0, that is
    a learning rate of B sigma^2 on the mean. Traces hold the mean, as for every other method.

    The closure hands out the networks' outputs, too: the curvature is then the generalised
    Gauss-Newton matrix, which is never negative.
    """

    filter: GaussianSumFilter

    def begin_task(self, seen: Sequence[int]) -> None:
        super().begin_task(seen)
        # Eager: factorising the curvature in the outputs asks the host, which a recording cannot.
        self._fast = lambda *batch: self.filter.step(lambda: self._likelihood(*batch))

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepInfo:
        info = super().learn(x, y, task)
        return replace(info, loss_before=info.loss_before / len(y))

    def _likelihood(self, x: Tensor, y: Tensor, task: Tensor) -> Any:
        losses, outputs = self._loss(x, y, task)
        return len(y) * losses, outputs
