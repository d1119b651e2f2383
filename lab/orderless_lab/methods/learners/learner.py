"""The interface of a learner, and the learner of most methods: a filter with masked outputs, a
penalty and replay."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orderless.consolidation import Consolidation
from orderless.ensemble import per_particle
from orderless.filters import GradientFilter, ParticleFilter, Predictor, StepInfo

from ...suites.scenario import Scenario
from .replay import Reservoir


class ContinualLearner(ABC):
    """Learns the tasks of a scenario one after another and predicts at any time.

    `seen` lists the tasks so far, in order. With `joint`, batches are drawn from all tasks at once.
    """

    joint = False
    parts: tuple[str, ...] = ("filter",)  # the attributes in the state, unless they are None

    def __init__(self, scenario: Scenario, filter: Predictor) -> None:
        self.scenario = scenario
        self.filter = filter
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


class Learner(ContinualLearner):
    """Trains a filter on the batches of a scenario.

    `consolidation` and `closed` are passed to `filter.register`: every step has the penalty.
    """

    parts: tuple[str, ...] = ("filter", "consolidation", "replay")
    filter: ParticleFilter

    def __init__(
        self,
        scenario: Scenario,
        filter: ParticleFilter,
        *,
        consolidation: Consolidation | None = None,
        closed: bool | None = None,
        replay: Reservoir | None = None,
        joint: bool = False,
    ) -> None:
        super().__init__(scenario, filter)
        self.consolidation = consolidation
        self.replay = replay
        self.joint = joint
        if consolidation is not None:
            register(consolidation, filter, closed)
        self._cross_entropy = per_particle(F.cross_entropy)
        shape = len(scenario), scenario.outputs
        self._masks = torch.zeros(shape, device=scenario.device)  # 0 or -inf, by task of a sample
        self._fast: Any = None

    def begin_task(self, seen: Sequence[int]) -> None:
        self.seen = list(seen)
        if self.scenario.kind != "domain":
            self._masks.fill_(-torch.inf)
            for task in self.seen:
                active = self.scenario.active(self.seen, task)
                self._masks[task, ... if active is None else active] = 0.0
        if self.consolidation is not None:
            self._name_the_past(self.consolidation)
        if self._fast is None or self.consolidation is not None:
            # a recorded step keeps the old penalty, so every task needs a new recording
            self._fast = self.filter.compile(self._loss)

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepInfo:
        if task is None:
            task = torch.full_like(y, self.seen[-1])
        batch: tuple[Tensor, ...] = x, y, task
        if self.replay is not None:
            batch = self.replay.mix(*batch)
        return self._fast(*batch)

    def end_task(self) -> None:
        if self.consolidation is None:
            return
        task = self.seen[-1]
        active = self.scenario.active(self.seen, task)
        self.consolidation.end_task(self.scenario.train_set(task), active=active)

    def _loss(self, x: Tensor, y: Tensor, task: Tensor) -> tuple[Tensor, Tensor]:
        """Losses `[N]`, and the outputs without a mask."""
        outputs = self.filter.particles(x)
        masked = outputs if self.scenario.kind == "domain" else outputs + self._masks[task]
        return self._cross_entropy(masked, y), outputs

    def _name_the_past(self, consolidation: Consolidation) -> None:
        """Tell the consolidation the scale or the outputs of past tasks, as in van de Ven et al.
        (2022). This must precede the recording of a step, which cannot read from the host."""
        past = self.seen[:-1]
        active = self.scenario.active
        if not past or self.scenario.kind == "domain":
            consolidation.begin_task(scale=float(len(past)))
        elif self.scenario.kind == "task":
            columns = (active(self.seen, old) for old in past)
            consolidation.begin_task([each for each in columns if each is not None])
        else:
            consolidation.begin_task(active(past, past[-1]), active(self.seen, self.seen[-1]))

    def outputs(self, x: Tensor, task: int) -> Tensor:
        outputs = self.filter.outputs(x)
        outputs = outputs if outputs.dtype == torch.float64 else outputs.float()
        active = self.scenario.active(self.seen, task)
        if active is None:
            return outputs
        mask = torch.full_like(outputs[0, 0], -torch.inf)
        mask[active] = 0.0
        return outputs + mask

    def check(self) -> None:
        self.filter.check(now=True)


def register(consolidation: Consolidation, filter: ParticleFilter, closed: bool | None) -> None:
    """Register a consolidation with a filter, which must take gradient steps."""
    if not isinstance(filter, GradientFilter):
        kind = type(filter).__name__
        raise TypeError(f"{kind} takes no gradient steps: a consolidation needs them")
    filter.register(consolidation, closed)
