"""The interface of audited learners, and adapters for networks and estimators."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orderless_lab.scenarios.streams import count_batches, keyed_generator, shuffled_batches

MakeLearner = Callable[[int], Any]
Loss = Callable[[Tensor, Tensor], Tensor]


class TaskLearner(Protocol):
    """Anything that learns task by task and predicts.

    `learn` gets all training data of one task, x `[n, ...]` and labels or values y `[n]`, and the
    task's number. `predict` returns labels `[B]`, one score per class `[B, C]` or values `[B]` of a
    regression, as tensors or arrays. It is called after every task and must not change the learner.
    """

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> Any: ...

    def predict(self, x: Tensor) -> Any: ...


@dataclass(eq=False)
class BatchLearner:
    """The common base of learners that learn a task by batches."""

    seed: int
    batch_size: int
    epochs: int

    def batches(self, x: Tensor, y: Tensor, task: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled batches that depend on (seed, task) and never on the task's position."""
        key, total = self.key(task), count_batches(len(y), self.batch_size, self.epochs, None)
        sizes: Any = {"samples": len(y), "batch_size": self.batch_size, "total": total}
        chosen = shuffled_batches("audit", key, **sizes, start=0, device=x.device)
        return ((x[at], y[at]) for _, at in chosen)

    def key(self, task: int | None) -> tuple[int, int]:
        return self.seed, -1 if task is None else task


@dataclass(eq=False)
class TorchLearner(BatchLearner):
    """A network and its optimizer, trained by batches. See `from_torch`."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Loss

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        """Train on one task; batches and dropout depend on (seed, task) alone."""
        torch.manual_seed(keyed_generator("audit", *self.key(task)).initial_seed())
        self.module.train()
        for inputs, labels in self.batches(x, y, task):
            self.optimizer.zero_grad()
            self.loss(self.module(inputs), labels).backward()
            self.optimizer.step()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """The network's outputs in evaluation mode: `[B, C]`."""
        self.module.eval()
        return torch.cat([self.module(part) for part in x.split(1024)])


def from_torch(
    make_module: Callable[[], nn.Module],
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    *,
    loss: Loss = F.cross_entropy,
    batch_size: int = 32,
    epochs: int = 1,
) -> MakeLearner:
    """`make_learner` for a plain network and optimizer.

    Args:
        make_module: makes one network, after torch's generator was seeded; every order starts from
            the same network.
        make_optimizer: maps parameters to an optimizer, `lambda p: torch.optim.SGD(p, lr=0.1)`.
        loss: `(outputs, labels) -> scalar`.
        batch_size, epochs: of the passes over each task. Batches depend on (seed, task); the
            incomplete batch at the end of a pass is dropped.
    """
    for name, value in (("make_module", make_module), ("make_optimizer", make_optimizer)):
        if not callable(value) or isinstance(value, nn.Module):
            raise ValueError(
                f"{name} must be a function that makes a new one for every run, got "
                f"{type(value).__name__}"
            )

    def network(seed: int) -> TorchLearner:  # the learner's name in the report
        torch.manual_seed(seed)
        module = make_module()
        optimizer = make_optimizer(module.parameters())
        return TorchLearner(seed, batch_size, epochs, module, optimizer, loss)

    return network


@dataclass(eq=False)
class PartialFitLearner(BatchLearner):
    """An estimator with `partial_fit`. See `from_partial_fit`."""

    estimator: Any
    known: dict[str, Any]

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        """Call `partial_fit` with the batches of one task."""
        for inputs, labels in self.batches(x, y, task):
            self.estimator.partial_fit(_rows(inputs), labels.cpu().numpy(), **self.known)

    def predict(self, x: Tensor) -> Any:
        """The estimator's labels or values `[B]`."""
        return self.estimator.predict(_rows(x))


def from_partial_fit(
    make_estimator: Callable[[int], Any],
    *,
    classes: int | Sequence[int] | None = None,
    batch_size: int = 32,
    epochs: int = 1,
) -> MakeLearner:
    """`make_learner` for a scikit-learn estimator with `partial_fit`.

    Args:
        make_estimator: maps a seed to an estimator, `lambda seed: SGDClassifier(random_state=seed)`
            (without `random_state` the seed sets numpy's generator).
        classes: all labels, or their number, which `partial_fit` of a classifier needs; None for a
            regressor.
        batch_size, epochs: as for `from_torch`. Inputs are flattened to `[B, d]`.
    """
    labels = range(classes) if isinstance(classes, int) else classes
    if labels is not None and len(labels) < 2:
        raise ValueError(f"classes must be at least 2, got {classes}")
    known = {} if labels is None else {"classes": np.asarray(labels)}

    def estimator(seed: int) -> PartialFitLearner:  # the learner's name in the report
        made = make_estimator(seed)
        if not hasattr(made, "partial_fit"):
            raise ValueError(
                f"{type(made).__name__} has no partial_fit, so it cannot learn task by task"
            )
        return PartialFitLearner(seed, batch_size, epochs, made, known)

    return estimator


def _rows(x: Tensor) -> np.ndarray:
    return x.reshape(len(x), -1).cpu().numpy()
