"""A tiny environment for the tests: walk right to the end of a corridor, against a time limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orderless_lab.rl import VectorEnvironment


class Corridor(VectorEnvironment):
    """Cells 0 ... length-1, start at 1; left end: reward -1, right end: +1, both terminate.

    After `limit` steps the episode is truncated. Observations are one-hot float32 `[E, length]`.
    """

    def __init__(self, n_envs: int, length: int = 6, limit: int = 12) -> None:
        super().__init__(n_envs, actions=3)  # left, right, stay
        self.length, self.limit = length, limit
        self.cells = np.ones(n_envs, dtype=np.int64)

    def _frames(self) -> np.ndarray:
        return np.eye(self.length, dtype=np.float32)[self.cells]

    def _start(self) -> np.ndarray:
        self.cells = np.ones(self.n_envs, dtype=np.int64)
        return self._frames()

    def _send(self, actions: np.ndarray) -> None:
        self._chosen = actions

    def _receive(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        moved = self.cells + np.array([-1, 1, 0])[self._chosen]
        self.cells = np.where(self.ended, 1, moved)
        left, right = self.cells == 0, self.cells == self.length - 1
        terminated = left | right
        late = ~self.ended & (self.lengths + 1 >= self.limit)
        rewards = right.astype(np.float64) - left
        return self._frames(), rewards, terminated, late & ~terminated

    def state_dict(self) -> dict[str, Any]:
        arrays = self.cells, self.first, self.ended, self.returns, self.lengths
        return {"arrays": [torch.from_numpy(array.copy()) for array in arrays]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        arrays = [tensor.numpy().copy() for tensor in state["arrays"]]
        self.cells, self.first, self.ended, self.returns, self.lengths = arrays
        self.observations, self._started = self._frames(), True


class Walker(nn.Module):
    """A policy and a value for the corridor."""

    def __init__(self, length: int = 6, hidden: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(length, hidden), nn.Tanh())
        self.policy = nn.Linear(hidden, 3)
        self.value = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x.to(self.policy.weight.dtype))
        return self.policy(features), self.value(features).squeeze(-1)
