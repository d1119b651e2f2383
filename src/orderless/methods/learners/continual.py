"""What an experiment asks of a learner, whatever it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from ...filters import Predictor, StepInfo
from ...scenarios import Scenario


class ContinualLearner(Protocol):
    """Learns the tasks of a scenario one after another and answers at any time.

    `seen` lists the tasks met so far, in order. `joint` asks for shuffled batches of all tasks at
    once (an upper bound).
    """

    seen: list[int]

    @property
    def scenario(self) -> Scenario: ...

    @property
    def filter(self) -> Predictor: ...

    @property
    def joint(self) -> bool: ...

    @property
    def weights(self) -> Tensor:
        """`[N]`, what the particles count for in an answer."""

    def begin_task(self, seen: Sequence[int]) -> None:
        """Get ready for the last task of `seen`."""

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepInfo | None:
        """Take in one batch; None where a single batch has nothing to report."""

    def end_task(self) -> StepInfo | None:
        """The task is over; what is known only now, if anything."""

    def check(self) -> None:
        """Raise `FloatingPointError` if learning has broken down."""

    def outputs(self, x: Tensor, task: int) -> Tensor:
        """Every particle's scores `[N, B, C]`, -inf where a class is out of the question.

        Of a sharded ensemble, the scores of the particles here.
        """

    def representation(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What the output layer of the heaviest particle sees, `[B, M]`, and its parameters."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
