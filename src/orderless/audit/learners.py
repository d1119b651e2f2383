"""An audited learner made of a network and its optimizer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .answers import LearnerError

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(eq=False)
class TorchLearner:
    """A network and its optimizer, trained by batches. See `from_torch`."""

    seed: int
    module: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Loss
    batch_size: int
    epochs: int

    def learn(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        """Train on one task; batches and dropout depend on (seed, task) alone."""
        generator = np.random.default_rng((self.seed, 0 if task is None else task + 1))
        torch.manual_seed(int(generator.integers(2**63)))
        self.module.train()
        if self.loss is F.cross_entropy and y.is_floating_point():
            raise LearnerError(
                f"the targets are values, {y.dtype}, and the loss is cross_entropy, of classes: "
                "pass loss=lambda outputs, y: F.mse_loss(outputs[:, 0], y) to from_torch"
            )
        size = min(self.batch_size, len(y))
        for _ in range(self.epochs):
            shuffled = torch.from_numpy(generator.permutation(len(y))).to(x.device)
            for rows in shuffled[: len(y) // size * size].split(size):
                self.optimizer.zero_grad()
                self.loss(self.module(x[rows]), y[rows]).backward()
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
) -> Callable[[int], TorchLearner]:
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
    if isinstance(make_module, nn.Module):
        raise ValueError(
            "make_module must be a function that makes a new network for every run, got the "
            f"network {type(make_module).__name__}"
        )
    if min(batch_size, epochs) < 1:
        raise ValueError(f"batch_size and epochs must be at least 1, got {batch_size} and {epochs}")

    def network(seed: int) -> TorchLearner:  # the learner's name in the report
        torch.manual_seed(seed)
        module = make_module()
        optimizer = make_optimizer(module.parameters())
        return TorchLearner(seed, module, optimizer, loss, batch_size, epochs)

    return network
