"""The interface of a learner."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from orderless.filters import Predictor, StepInfo

from ...suites.scenario import Scenario


class ContinualLearner(ABC):
    """Learns the tasks of a scenario one after another and predicts at any time.

    `seen` lists the tasks so far, in order. With `joint`, batches are drawn from all tasks at once.
    """

    joint = False
    parts: tuple[str, ...] = ("filter",)  # the attributes in the state, unless they are None

    def __init__(self, scenario: Scenario, filter: Predictor) -> None:
        self.scenario, self.filter = scenario, filter
        self.seen: list[int] = []

    @abstractmethod
    def begin_task(self, seen: Sequence[int]) -> None:
        """Prepare for the last task of `seen`, the list of all tasks so far, in order."""

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepInfo | None:
        """Learn one batch; returns None if there is nothing to report.

        Labels are in the scenario's output space; `task` `[B]` is given if tasks are mixed.
        """

    def end_task(self) -> StepInfo | None:
        """Finish the task; returns what is known only now, if anything."""
        return None

    @abstractmethod
    def outputs(self, x: Tensor, task: int) -> Tensor:
        """The scores `[N, B, C]` of this rank's particles, -inf for inactive classes."""

    @property
    def weights(self) -> Tensor:
        """The particles' weights in a prediction, `[N]`."""
        return self.filter.weights

    def check(self) -> None:  # noqa: B027  (optional)
        """Raise `FloatingPointError` if learning has diverged."""

    def representation(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The inputs `[B, M]` of the heaviest particle's last layer, and its parameters."""
        return heaviest_representation(self.filter, x)

    def state_dict(self) -> dict[str, object]:
        parts = ((name, getattr(self, name)) for name in self.parts)
        return {name: part.state_dict() for name, part in parts if part is not None}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)


@torch.no_grad()
def heaviest_representation(filter: Predictor, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The inputs of the heaviest network's last linear layer, and the network's parameters.

    A network without linear layers is represented by its outputs.
    """
    network = filter.networks[int(filter.weights.argmax())].eval()
    seen: list[Tensor] = []
    for last in [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1:]:
        last.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    outputs = network(x)
    return seen[0] if seen else outputs.flatten(1), list(network.parameters())
