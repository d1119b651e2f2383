"""The interface of audited learners, and adapters for networks and estimators."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .orders import keyed_generator, shuffled_batches

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
class TorchLearner:
    """A network and its optimizer, trained by batches. See `from_torch`."""

    seed: int
    batch_size: int
    epochs: int
    module: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Loss

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        """Train on one task; batches and dropout depend on (seed, task) alone."""
        key = self.seed, -1 if task is None else task
        torch.manual_seed(keyed_generator("audit", *key).initial_seed())
        self.module.train()
        sizes = {"batch_size": self.batch_size, "epochs": self.epochs}
        for inputs, labels in shuffled_batches(x, y, **sizes, key=key):
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

    >>> make = from_torch(lambda: nn.Linear(3, 2), lambda p: torch.optim.SGD(p, lr=0.1))
    >>> learner = make(0)
    >>> learner.learn(torch.randn(40, 3), torch.randint(2, (40,)), task=0)
    >>> learner.predict(torch.randn(5, 3)).shape
    torch.Size([5, 2])
    """
    _check_sizes(batch_size, epochs)
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
class PartialFitLearner:
    """An estimator with `partial_fit`. See `from_partial_fit`."""

    seed: int
    batch_size: int
    epochs: int
    estimator: Any
    known: dict[str, Any]

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        """Call `partial_fit` with the batches of one task."""
        key = self.seed, -1 if task is None else task
        sizes = {"batch_size": self.batch_size, "epochs": self.epochs}
        for inputs, labels in shuffled_batches(x, y, **sizes, key=key):
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

    >>> from sklearn.naive_bayes import GaussianNB
    >>> learner = from_partial_fit(lambda seed: GaussianNB(), classes=2)(0)
    >>> learner.learn(torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]))
    >>> learner.predict(torch.tensor([[-2.0], [2.0]]))
    array([0, 1])
    """
    _check_sizes(batch_size, epochs)
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


def _check_sizes(batch_size: int, epochs: int) -> None:
    for name, value in (("batch_size", batch_size), ("epochs", epochs)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def _rows(x: Tensor) -> np.ndarray:
    return x.reshape(len(x), -1).cpu().numpy()
