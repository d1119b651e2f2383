"""A network trained anew on kept samples: the same bits for every order of the tasks."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from orderless import KeptSample
from orderless.filters import GradientDescent, StepInfo

from ...suites.scenario import Scenario
from .learner import Learner


class KeptLearner(Learner):
    """Keeps samples of the stream by their hash; at the end of a task one network is trained from
    the start on all that are kept, in the order of their hashes.

    The loss is that of joint training: over all outputs, or, if task identities are given
    (task-incremental), over those of the sample's own task.
    """

    parts = ("filter", "kept")

    def __init__(
        self,
        scenario: Scenario,
        make_filter: Callable[[], GradientDescent],
        *,
        share: float,
        epochs: int,
        batch_size: int,
    ) -> None:
        super().__init__(scenario, make_filter())
        self.make_filter = make_filter
        self.kept = KeptSample(share)
        self.epochs = epochs
        self.batch_size = batch_size

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> None:  # type: ignore[override]
        """Look at a batch; nothing is trained yet."""
        self.kept.add(x, y)

    def end_task(self) -> StepInfo | None:  # type: ignore[override]
        """Train a new network; returns its last step."""
        if not len(self.kept):
            return None
        self.filter = self.make_filter()
        fast = self.filter.compile(self._loss)
        x, y = (part.to(self.scenario.device) for part in self.kept.samples())
        info: Any = None
        for _ in range(self.epochs):
            for inputs, labels in zip(
                x.split(self.batch_size), y.split(self.batch_size), strict=True
            ):
                info = fast(inputs, labels, labels // self.scenario.classes_per_task)
        return info
