"""What an experiment asks of a learner, whatever it is made of."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ...filters import Predictor, StepInfo
from ...scenarios import Scenario


class ContinualLearner(ABC):
    """Learns the tasks of a scenario one after another and answers at any time.

    `seen` lists the tasks met so far, in order. `joint` asks for shuffled batches of all tasks at
    once.
    """

    joint = False
    parts: tuple[str, ...] = ("filter",)  # attributes that are saved, those of them that are set

    def __init__(self, scenario: Scenario, filter: Predictor) -> None:
        self.scenario, self.filter = scenario, filter
        self.seen: list[int] = []

    @abstractmethod
    def begin_task(self, seen: Sequence[int]) -> None:
        """Get ready for the last task of `seen`; `seen` lists all tasks so far, in order."""

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepInfo | None:
        """Take in one batch; None where a single batch has nothing to report.

        Labels are in the scenario's output space; `task` `[B]` is given where tasks are mixed.
        """

    def end_task(self) -> StepInfo | None:
        """The task is over; what is known only now, if anything."""
        return None

    @abstractmethod
    def outputs(self, x: Tensor, task: int) -> Tensor:
        """Every particle's scores `[N, B, C]`, -inf where a class is out of the question.

        Of a sharded ensemble, the scores of the particles here.
        """

    @property
    def weights(self) -> Tensor:
        """`[N]`, what the particles count for in an answer."""
        return self.filter.weights

    def check(self) -> None:  # noqa: B027  (most have nothing to ask)
        """Raise `FloatingPointError` if learning has broken down."""

    def representation(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What the output layer of the heaviest particle sees, `[B, M]`, and its parameters."""
        return heaviest_representation(self.filter, x)

    def state_dict(self) -> dict[str, object]:
        parts = ((name, getattr(self, name)) for name in self.parts)
        return {name: part.state_dict() for name, part in parts if part is not None}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)


@torch.no_grad()
def heaviest_representation(filter: Predictor, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What the last linear layer of the heaviest network sees, and that network's weights."""
    network = filter.networks[int(filter.weights.argmax())].eval()
    seen: list[Tensor] = []
    last = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    network(x)
    hook.remove()
    return seen[0], list(network.parameters())
