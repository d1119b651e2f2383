"""A user's own tasks: `module:name` of a scenario, a list of tasks, or a function for one."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orderless.cli.references import made_by
from orderless.errors import UserError
from orderless.tasks import Task

from .base import Outline, Preset
from .scenario import Kind, Scenario, to_unit
from .supervised import SCENARIOS, SupervisedSuite

HELD_OUT = 0.2  # share of a task without test data
MOST_OUTPUTS = 256  # records keep predictions as bytes


@dataclass
class OwnSuite(SupervisedSuite):
    """The suite of the tasks at `module:name`."""

    label: str = field(init=False)
    description: str = field(default="your own tasks", init=False)
    _scenarios: dict[str, Scenario] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.label = self.name
        usual = getattr(self.given, "kind", "domain")
        self.variants = (usual, *(kind for kind in SCENARIOS if kind != usual))

    @cached_property
    def given(self) -> Any:
        """What the user's module holds."""
        given = made_by(self.name, "your own tasks")
        if not isinstance(given, Scenario | Sequence) or isinstance(given, str) or not len(given):
            raise UserError(
                f"{self.name} must be a Scenario, a list of tasks, or a function without arguments "
                f"that makes one, got {_kind_of(given)}"
            )
        return given

    def presets(self, variant: str) -> Mapping[str, Preset]:
        own = {"own": self.own()}
        return own | {"demo": self.demo(), "table1": Preset(self.settings(), 10, 3)}

    def scenario(self, variant: Any) -> Scenario:
        if variant not in self._scenarios:
            try:
                self._scenarios[variant] = as_scenario(self.given, variant)
            except (TypeError, ValueError) as error:
                raise UserError(f"{self.name} cannot be used: {error}") from error
        return self._scenarios[variant]

    def outline(self, variant: str, settings: Any) -> Outline:
        scenario = self.scenario(variant)
        return Outline(len(scenario), scenario.input_shape, scenario.outputs)

    def digest(self, variant: str, settings: Any) -> str | None:
        return self.scenario(variant).digest

    def load(
        self, variant: str, settings: Any, seed: int, root: str | None, device: str
    ) -> Scenario:
        if settings.assign != "fixed":
            raise UserError(f"assign={settings.assign} is not for tasks of your own: leave it out")
        scenario = self.scenario(variant)
        if settings.validation:
            scenario = scenario.validation(settings.validation)
        return scenario.to(device)


def as_scenario(given: Any, kind: Kind) -> Scenario:
    """A scenario of this kind from a user's scenario, or from tasks in any form of `_task`.

    Inputs become float32, bytes are divided by 255. Raises `ValueError` for data that networks or
    records do not accept.
    """
    if isinstance(given, Scenario):
        scenario = Scenario(
            given.tasks,
            kind=kind,
            name=given.name,
            augment=given.augment,
            transform=given.transform,
        )
    else:
        tasks = [_task(one, number, kind) for number, one in enumerate(given)]
        images = all(x.dtype == torch.uint8 for t in tasks for x in (t.x, t.x_test))
        if not images:
            tasks = [replace(t, x=_floats(t.x), x_test=_floats(t.x_test)) for t in tasks]
        scenario = Scenario(tasks, kind=kind, transform=to_unit if images else None)
    if not scenario.input_shape:
        raise ValueError("inputs must have the shape [n, ...], got [n]: use x.unsqueeze(1)")
    inputs = [x for task in scenario.tasks for x in (task.x, task.x_test)]
    seen = inputs if scenario.transform is None else [scenario.test_set(0)[0]]
    wrong = {str(x.dtype) for x in seen if x.dtype != torch.float32}
    if wrong:
        raise ValueError(f"networks learn from float32, got {wrong.pop()}: give a transform to it")
    if not all(x.isfinite().all() for x in inputs):
        raise ValueError("inputs must be finite, and some are NaN or infinite")
    if scenario.outputs > MOST_OUTPUTS:
        raise ValueError(
            f"there may be {MOST_OUTPUTS} outputs, and {len(scenario)} tasks with labels up to "
            f"{scenario.classes_per_task - 1} make {scenario.outputs}: number labels from 0"
        )
    if kind == "domain" and share_no_label(scenario.tasks):
        warnings.warn(
            "no two tasks share a label: in the scenario domain they share all outputs, so "
            "--scenario class is perhaps what you mean",
            stacklevel=2,
        )
    scenario.digest = scenario.fingerprint()
    return scenario


def share_no_label(tasks: Sequence[Task]) -> bool:
    """Whether several tasks have labels, and none that another has."""
    labels = [label for task in tasks for label in task.y.unique().tolist()]
    return len(tasks) > 1 and len(labels) == len(set(labels))


def _floats(x: Tensor) -> Tensor:
    return to_unit(x) if x.dtype == torch.uint8 else x.float()


def _task(given: Any, number: int, kind: Kind) -> Task:
    """A task from an `ol.Task`, a pair (training, test), or data of which a part is held out.

    Data are a pair (x, y) of tensors or arrays, or a dataset of such samples. If every task has its
    own classes, its labels are numbered from 0.
    """
    if isinstance(given, Task):
        parts: tuple[Any, Any] = ((given.x, given.y), (given.x_test, given.y_test))
        name = given.name
        alone = False
    else:
        pair = isinstance(given, tuple | list)
        if isinstance(given, str) or not hasattr(given, "__len__") or (pair and len(given) != 2):
            raise ValueError(
                f"task {number} must be an ol.Task, (training, test), or (x, y), got "
                f"{_kind_of(given)}"
            )
        alone = not pair or _is_array(given[0])
        parts = (given, given) if alone else given
        name = f"task {number}"
    try:
        task = _task_of(*parts, name=name, relabel=kind != "domain")
    except (TypeError, ValueError) as error:
        raise ValueError(f"task {number}: {error}") from error
    return Scenario([task]).validation(HELD_OUT).tasks[0] if alone else task


def _kind_of(given: Any) -> str:
    size = f" of length {len(given)}" if hasattr(given, "__len__") else ""
    return f"a {type(given).__name__}{size}"


def _task_of(training: Any, test: Any, *, name: str, relabel: bool) -> Task:
    """Read two datasets, or pairs (x, y) of tensors or arrays, into one task.

    With `relabel`, the labels in ascending order become 0, 1, ...
    """
    x, y = _read(training)
    x_test, y_test = _read(test)
    if relabel:
        known = torch.cat([y, y_test]).unique()
        y = torch.searchsorted(known, y)
        y_test = torch.searchsorted(known, y_test)
    return Task(x, y, x_test, y_test, name)


def _is_array(value: object) -> bool:
    """Whether `value` is a tensor or array, that is, all inputs or labels at once."""
    return isinstance(value, Tensor | np.ndarray)


def _read(dataset: Any) -> tuple[Tensor, Tensor]:
    if isinstance(dataset, tuple | list) and len(dataset) == 2 and _is_array(dataset[0]):
        x, y = dataset
        kind = y.dtype if _is_array(y) else type(y).__name__
        if "int" not in str(kind):  # `relabel` would rank other numbers
            raise ValueError(
                f"labels must be integers of shape [n], got {kind}: number them from 0"
            )
        return torch.as_tensor(x), torch.as_tensor(y).long()  # torch cannot sort all of them
    if not len(dataset):
        raise ValueError(f"a dataset must have at least one sample, got an empty {type(dataset)}")
    items = [dataset[index] for index in range(len(dataset))]
    # np.array accepts more than as_tensor, such as PIL images
    x = [x if isinstance(x, Tensor) else torch.from_numpy(np.array(x)) for x, _ in items]
    try:
        return torch.stack(x), torch.tensor([operator.index(y) for _, y in items])
    except TypeError as error:  # int would cut off the fractions of a regression's values
        raise ValueError(f"labels must be integers: {error}; number them from 0") from None
