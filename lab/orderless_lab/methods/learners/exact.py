"""The learner of the exact head: assigns samples to heads and gathers batches."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from orderless.errors import UserError
from orderless.exact import ExactHead
from orderless.features import DeadLeaves, RandomConvolution, RandomReLU, cached, efficientnet_lite
from orderless.filters import StepInfo
from orderless.filters.weights import normalize

from ...suites.scenario import Scenario
from .learner import ContinualLearner


@lru_cache
def feature_map(kind: str, shape: tuple[int, ...], features: int) -> Callable[[], nn.Module]:
    """A function that makes maps of a kind, see `exact_map`; always the same: it is a cache key."""
    image = len(shape) == 3 and shape[1] == shape[2]
    if kind == "auto":
        kind = "leaves" if image and shape[1] > 8 else "relu"  # patches have 6 x 6 pixels
    if kind.startswith("lite"):  # a network's outputs have longer tails than pixels
        return partial(RandomReLU, math.prod(shape), features, bias_scale=0.0, input_limit=8.0)
    if kind == "relu":
        bias_scale = 0.0 if image else 0.5
        return partial(RandomReLU, math.prod(shape), features, bias_scale=bias_scale)
    if not image:
        raise UserError(f"exact_map={kind} takes square images, got inputs of shape {shape}")
    # Grey images are digits here: positions matter more, and mirror images differ.
    colour = shape[0] == 3
    regions = 2 if colour or kind == "convolution" else 4
    each = regions**2 * (2 if kind == "leaves" else 1)
    if features % each:
        raise UserError(
            f"exact_features must be a multiple of {each} with exact_map={kind}, the features of "
            f"one filter, got {features}; exact_map=relu takes any number"
        )
    sizes = shape[0], shape[1], features // each
    if kind == "convolution":
        return partial(RandomConvolution, *sizes, mirror=False, regions=regions)
    return partial(DeadLeaves, *sizes, mirror=colour, regions=regions)


@lru_cache
def backbone_features(kind: str) -> Callable[[Tensor], Tensor] | None:
    """Maps stored images to the features of a frozen network; None for maps without one."""
    if not kind.startswith("lite"):
        return None
    return partial(cached, efficientnet_lite(int(kind.removeprefix("lite"))))


class ExactLearner(ContinualLearner):
    """A learner with an `ExactHead`.

    - domain: a column per (task, label), and all tasks compete for each label at test time; or,
      unless `by_task`, a column per label.
    - task: a column per (task, label); at test time only those of the given task.
    - class: a column per label.

    Batches are gathered up to `block` samples before they are added. The sums are exact, so this
    changes the speed only. Heads are solved on demand. A task's trace has one point, at its end:
    the *evidence* weights, whichever weights predictions use, and as loss -log p(data so far | map
    i) per sample.
    """

    filter: ExactHead

    def __init__(
        self, scenario: Scenario, filter: ExactHead, block: int, *, by_task: bool = True
    ) -> None:
        super().__init__(scenario, filter)
        self.by_task = by_task and scenario.kind != "class"
        self.block = block
        self._gathered: list[tuple[Tensor, Tensor]] = []

    def begin_task(self, seen: Sequence[int]) -> None:
        self._absorb()
        self.seen = list(seen)

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> None:
        if task is not None:
            raise UserError("the exact head learns one task at a time: leave task out")
        self._gathered.append((x, y))
        if sum(len(labels) for _, labels in self._gathered) >= self.block:
            self._absorb()

    def _absorb(self) -> None:
        if not self._gathered:
            return
        x, y = (torch.cat(parts) for parts in zip(*self._gathered, strict=True))
        self._gathered = []
        if not self.by_task:
            self.filter.update(x, y)
            return
        task = self.seen[-1]
        first = 0 if self.scenario.kind == "domain" else task * self.scenario.classes_per_task
        self.filter.update(x, y - first, task=task)

    def end_task(self) -> StepInfo:
        """The evidence weights, and each map's loss per sample so far."""
        self._absorb()
        evidence = self.filter.particle_log_evidence
        loss = -evidence / max(1, self.filter.samples)
        return StepInfo(loss, None, None, self.filter.alive.clone(), normalize(evidence)[0])

    def outputs(self, x: Tensor, task: int) -> Tensor:
        """Every map's calibrated logits."""
        self._absorb()
        if self.scenario.kind != "task":
            return self.filter.outputs(x)
        own = self.filter.outputs(x, task=task)
        everything = own.new_full((*own.shape[:2], self.scenario.outputs), -torch.inf)
        columns = self.scenario.active(self.seen, task)
        assert columns is not None
        everything[..., columns] = own
        return everything

    @property
    def weights(self) -> Tensor:
        self._absorb()
        return self.filter.weights

    @torch.no_grad()
    def representation(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The features of the heaviest map, and the weights of its heads."""
        best = int(self.weights.argmax())
        return self.filter.grid(x)[best], [self.filter.heads[best].weight]

    def state_dict(self) -> dict[str, object]:
        self._absorb()
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self._gathered = []
        super().load_state_dict(state)
