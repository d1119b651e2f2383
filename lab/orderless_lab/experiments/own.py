"""A user's own benchmark: `module:name` of a scenario, a list of tasks, or a function for one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from orderless.cli.references import made_by
from orderless.tasks import Task, is_array, task_from_datasets

from ..methods.settings import Settings
from ..scenarios import Scenario
from ..scenarios.augment import to_unit

HELD_OUT = 0.2  # share of a task without test data
MOST_OUTPUTS = 256  # records keep predictions as bytes


def find_tasks(reference: str) -> Any:
    """The scenario or list of tasks at `module:name`; a function is called."""
    given = made_by(reference, "your own tasks")
    if not isinstance(given, Scenario | Sequence) or isinstance(given, str) or not len(given):
        raise ValueError(
            f"{reference} must be a Scenario, a list of tasks, or a function without arguments "
            f"that makes one, got {_kind_of(given)}"
        )
    return given


def make_scenario(
    reference: str,
    given: Any,
    kind: Any,
    settings: Settings,
    seed: int,
    root: str | None,
    device: str,
) -> Scenario:
    """The scenario of a user's own benchmark, see `Benchmark`."""
    if settings.assign != "fixed":
        raise ValueError(f"assign={settings.assign} is not for tasks of your own: leave it out")
    try:
        scenario = as_scenario(given, kind)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{reference} cannot be used: {error}") from error
    if settings.validation:
        scenario = scenario.validation(settings.validation)
    return scenario.to(device)


def as_scenario(given: Any, kind: Any) -> Scenario:
    """A scenario of this kind from a user's scenario, or from tasks in any form of `_task`.

    Inputs become float32, bytes are divided by 255. Raises `ValueError` for data that networks or
    records do not accept.
    """
    if isinstance(given, Scenario):
        options: Any = {"augment": given.augment, "transform": given.transform}
        scenario = Scenario(given.tasks, kind=kind, name=given.name, **options)
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
    scenario.digest = scenario.fingerprint()
    return scenario


def _floats(x: Tensor) -> Tensor:
    return to_unit(x) if x.dtype == torch.uint8 else x.float()


def _task(given: Any, number: int, kind: str) -> Task:
    """A task from an `ol.Task`, a pair (training, test), or data of which a part is held out.

    Data are a pair (x, y) of tensors or arrays, or a dataset of such samples. If every task has its
    own classes, its labels are numbered from 0.
    """
    if isinstance(given, Task):
        return given
    pair = isinstance(given, tuple | list)
    if isinstance(given, str) or not hasattr(given, "__len__") or (pair and len(given) != 2):
        raise ValueError(
            f"task {number} must be an ol.Task, (training, test), or (x, y), got {_kind_of(given)}"
        )
    alone = not pair or is_array(given[0])
    parts = (given, given) if alone else given
    try:
        task = task_from_datasets(*parts, name=f"task {number}", relabel=kind != "domain")
    except (TypeError, ValueError) as error:
        raise ValueError(f"task {number}: {error}") from error
    return Scenario([task]).validation(HELD_OUT).tasks[0] if alone else task


def _kind_of(given: Any) -> str:
    size = f" of length {len(given)}" if hasattr(given, "__len__") else ""
    return f"a {type(given).__name__}{size}"
