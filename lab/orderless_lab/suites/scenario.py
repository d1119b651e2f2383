"""Scenarios: tasks that are learned one after another, in any order.

All randomness depends on (seed, task identity) and never on the task's position, so permuting the
tasks changes their order and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from orderless.io import checksum
from orderless.tasks import Task

from .streams import count_batches, keyed_generator, shuffled_batches

Kind = Literal["domain", "task", "class"]
Augment = Callable[[Tensor, torch.Generator], Tensor]
Transform = Callable[[Tensor], Tensor]


class Scenario:
    """A list of tasks, and how their labels map to a network's outputs.

    `kind` defines what a learner knows and must distinguish (T tasks of C classes each):

    * "domain": all tasks share C outputs; the task is not known at test time.
    * "task": T*C outputs, C for each task; the task is known, also at test time.
    * "class": T*C outputs; the learner distinguishes all classes of the tasks seen so far.

    Labels in `Task.y` are local, 0..C-1; `targets`, `test_targets` and all batches have them in
    the network's output space. If tasks have different numbers of classes, C is the largest.
    `augment(x, generator)` is applied to training batches, then `transform(x)` to every batch.
    Both get [B, ...] as stored in the task; uint8 images need a transform to floats.

    >>> import torch
    >>> x, y = torch.randn(2, 60, 8), torch.arange(60) % 3
    >>> tasks = [Task(x[t, :40], y[:40], x[t, 40:], y[40:], name=f"day {t}") for t in (0, 1)]
    >>> scenario = Scenario(tasks, kind="class")
    >>> len(scenario), scenario.classes_per_task, scenario.outputs
    (2, 3, 6)
    >>> [tuple(batch.shape) for batch, _ in scenario.batches(1, batch_size=16, seed=0)]
    [(16, 8), (16, 8)]
    """

    digest: str | None = None  # of a user's data, which may change between runs

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        kind: Kind = "domain",
        name: str = "custom",
        augment: Augment | None = None,
        transform: Transform | None = None,
    ) -> None:
        if kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
        if not tasks:
            raise ValueError("a scenario needs at least one task, got none")
        if any(task.values for task in tasks):
            raise ValueError("labels of a scenario must be integers (classes), got floats")
        self.tasks = list(tasks)
        self.name = name
        self.kind: Kind = kind
        self.augment = augment
        self.transform = transform
        shapes = {tuple(x.shape[1:]) for task in self.tasks for x in (task.x, task.x_test)}
        devices = {x.device for task in self.tasks for x in (task.x, task.x_test)}
        if len(shapes) > 1 or len(devices) > 1:
            raise ValueError(
                f"all tasks must have inputs of one shape on one device, got shapes "
                f"{sorted(shapes)} on {sorted(map(str, devices))}"
            )
        self.task_names = [task.name or f"task {t}" for t, task in enumerate(self.tasks)]
        labels = [y for task in self.tasks for y in (task.y, task.y_test)]
        self.classes_per_task = 1 + max(int(y.max()) for y in labels)
        self.outputs = self.classes_per_task * (1 if kind == "domain" else len(self.tasks))
        self.input_shape = tuple(self._transformed(self.tasks[0].x[:1]).shape[1:])

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, kind={self.kind!r}, tasks={len(self)}, "
            f"classes_per_task={self.classes_per_task}, outputs={self.outputs})"
        )

    def fingerprint(self) -> str:
        """A hash of the names and data of all tasks."""
        parts = ("x", "y", "x_test", "y_test")
        data = {f"{k} {p}": getattr(t, p).cpu() for k, t in enumerate(self.tasks) for p in parts}
        return checksum(repr(self.task_names), data)

    @property
    def device(self) -> torch.device:
        """The device of the data."""
        return self.tasks[0].x.device

    def with_tasks(self, tasks: Sequence[Task]) -> Scenario:
        other = copy.copy(self)
        kept: Any = {name: getattr(self, name) for name in ("kind", "name", "augment", "transform")}
        Scenario.__init__(other, tasks, **kept)
        return other

    def to(self, device: torch.device | str) -> Scenario:
        """The same scenario with its data on `device`."""
        return self.with_tasks([task.to(device) for task in self.tasks])

    def mapped(self, features: Transform | None = None) -> Scenario:
        """The same tasks as they are stored, without augmentation.

        With `features`, for example a frozen network, the inputs are `features(x)` of the *stored*
        x, computed once and not transformed.
        """
        other = copy.copy(self)
        other.augment = None
        if features is None:
            return other
        other.transform = None
        return other.with_tasks(
            [replace(t, x=features(t.x), x_test=features(t.x_test)) for t in self.tasks]
        )

    def validation(self, fraction: float) -> Scenario:
        """The same scenario with a part of each task's *training* data in place of its test data.

        The part is drawn class by class, always the same samples; the test data is not used.
        """
        if not 0 < fraction < 1:
            raise ValueError(f"validation must be a fraction between 0 and 1, got {fraction}")
        tasks = []
        for identity, task in enumerate(self.tasks):
            held = torch.zeros(len(task.y), dtype=torch.bool)
            for label in task.y.unique().tolist():
                members = (task.y == label).nonzero().flatten().cpu()
                count = min(max(1, round(fraction * len(members))), len(members) - 1)
                generator = keyed_generator("validation", identity, label)
                held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
            held = held.to(self.device)
            x = task.x
            y = task.y
            tasks.append(replace(task, x=x[~held], y=y[~held], x_test=x[held], y_test=y[held]))
        return self.with_tasks(tasks)

    def _task(self, task: int) -> Task:
        if not 0 <= task < len(self):
            raise IndexError(f"tasks are 0 to {len(self) - 1}, got {task}")
        return self.tasks[task]

    def _shift(self, task: int) -> int:
        return 0 if self.kind == "domain" else task * self.classes_per_task

    def targets(self, task: int) -> Tensor:
        """Training labels of one task in the network's output space: int64 [n]."""
        return self._shift(task) + self._task(task).y.long()

    def test_targets(self, task: int) -> Tensor:
        """Test labels of one task in the network's output space: int64 [n_test]."""
        return self._shift(task) + self._task(task).y_test.long()

    def active(self, seen: Sequence[int], task: int) -> Tensor | None:
        """The output columns a learner may use, int64 [k] in ascending order; None means all.

        "domain": None. "task": the C columns of `task`. "class": those of all tasks in `seen`, in
        training and in testing; None before the first task.
        """
        if self.kind == "domain" or (self.kind == "class" and not seen):
            return None
        used = [task] if self.kind == "task" else sorted(set(seen))
        columns = torch.arange(self.outputs, device=self.device).view(len(self), -1)
        return columns[used].flatten()

    def train_set(self, task: int) -> tuple[Tensor, Tensor]:
        """All training data of a task, transformed and not augmented, and its targets."""
        return self._transformed(self._task(task).x), self.targets(task)

    def test_set(self, task: int) -> tuple[Tensor, Tensor]:
        """All test data of a task, transformed, and its targets."""
        return self._transformed(self._task(task).x_test), self.test_targets(task)

    def n_batches(
        self,
        task: int | Sequence[int],
        batch_size: int,
        epochs: int = 1,
        iterations: int | None = None,
    ) -> int:
        """The number of batches of `batches` for a task (of `joint_batches` for several)."""
        identities = task if isinstance(task, Sequence) else [task]
        samples = sum(len(self._task(identity).y) for identity in identities)
        return count_batches(samples, batch_size, epochs, iterations)

    def batches(
        self,
        task: int,
        *,
        batch_size: int,
        seed: int,
        epochs: int = 1,
        iterations: int | None = None,
        start: int = 0,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Training batches of one task: x [B, ...] and targets int64 [B].

        `epochs` passes, each shuffled separately, or exactly `iterations` batches over as many
        passes as needed. The incomplete batch at the end of a pass is dropped; a task with fewer
        samples than `batch_size` is one batch. The stream depends only on `seed`, the task's
        identity and `batch_size`. `start` skips that many batches without computing them.
        """
        total = self.n_batches(task, batch_size, epochs, iterations)
        data = self._task(task).x, self.targets(task)
        return self._stream("task", (seed, task), data, batch_size, total, start)

    def joint_batches(
        self,
        tasks: Sequence[int],
        *,
        batch_size: int,
        seed: int,
        epochs: int = 1,
        iterations: int | None = None,
        start: int = 0,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches drawn from all of `tasks` at once: x [B, ...], targets [B], task identity [B].

        As `batches`, over a copy of all data of the tasks. The order of `tasks` has no effect.
        """
        used = sorted(set(tasks))
        if not used:
            raise ValueError("joint batches need at least one task, got none")
        total = self.n_batches(used, batch_size, epochs, iterations)
        x = torch.cat([self._task(t).x for t in used])
        y = torch.cat([self.targets(t) for t in used])
        identity = torch.cat([torch.full_like(self.tasks[t].y, t).long() for t in used])
        return self._stream("joint", (seed, *used), (x, y, identity), batch_size, total, start)

    def _transformed(self, x: Tensor) -> Tensor:
        return x if self.transform is None else self.transform(x)

    def _stream(
        self,
        name: str,
        key: tuple[int, ...],
        data: tuple[Tensor, ...],
        batch_size: int,
        total: int,
        start: int,
    ) -> Iterator[Any]:
        """Batches of augmented and transformed inputs, with the matching rows of the other data."""
        if start < 0:  # raised here and not at the first batch
            raise ValueError(f"start must be 0 or larger, got {start}")

        def drawn(number: int, x: Tensor) -> Tensor:
            if self.augment is not None:
                x = self.augment(x, keyed_generator(f"augment {name}", *key, number))
            return self._transformed(x)

        x, *beside = data
        sizes: Any = {"samples": len(x), "batch_size": batch_size, "total": total, "start": start}
        return (
            (drawn(number, x[at]), *(part[at] for part in beside))
            for number, at in shuffled_batches(name, key, **sizes, device=self.device)
        )


def to_unit(x: Tensor) -> Tensor:
    """Bytes to [0, 1]: uint8 [B, ...] -> float32 [B, ...]."""
    return x.to(torch.float32) / 255  # never in place: x may be float32, and the data itself
