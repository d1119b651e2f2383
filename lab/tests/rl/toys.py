"""What the tests of rl share: a corridor to walk, policies for it, and filters over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import orderless as ol
from orderless_lab.rl import PPO, PPOSettings, VectorEnvironment


class Corridor(VectorEnvironment):
    """Cells 0 ... length-1, start at 1; left end: reward -1, right end: +1, both terminate.

    After `limit` steps the episode is truncated. Observations are one-hot float32 `[E, length]`.
    All levels are the same.
    """

    def __init__(self, n_envs: int, length: int = 6, limit: int = 12) -> None:
        super().__init__(n_envs, actions=3)  # left, right, stay
        self.length = length
        self.limit = limit
        self.cells = np.ones(n_envs, dtype=np.int64)

    def _frames(self) -> np.ndarray:
        return np.eye(self.length, dtype=np.float32)[self.cells]

    def _start(self) -> np.ndarray:
        self.cells = np.ones(self.n_envs, dtype=np.int64)
        return self._frames()

    def _step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        moved = self.cells + np.array([-1, 1, 0])[actions]
        self.cells = np.where(self.ended, 1, moved)
        left = self.cells == 0
        right = self.cells == self.length - 1
        late = ~self.ended & (self.lengths + 1 >= self.limit)
        rewards = right.astype(np.float64) - left
        return self._frames(), rewards, left | right, late & ~left & ~right

    def switch(self, level: int) -> Any:
        self.level = level
        return self.reset()

    def state_dict(self) -> dict[str, Any]:
        arrays = self.cells, self.first, self.ended, self.returns, self.lengths
        return {"arrays": [torch.from_numpy(array.copy()) for array in arrays]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        arrays = [tensor.numpy().copy() for tensor in state["arrays"]]
        self.cells, self.first, self.ended, self.returns, self.lengths = arrays
        self.observations = self._frames()
        self.started = True


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


SETTINGS = PPOSettings(steps=32, minibatches=4, discount=0.95)


def make_ppo(kind: Any, n: int, settings: PPOSettings = SETTINGS, **options: Any) -> PPO:
    """PPO of n walkers in eight corridors, by Adam."""
    particles = ol.Ensemble(Walker, n, seed=0)
    optimizer = torch.optim.Adam(particles.parameters(), lr=1e-2)
    return PPO(kind(particles, optimizer, max_grad_norm=0.5), Corridor(8), settings, **options)


def averaging(particles: ol.Ensemble, lr: float = 0.1) -> ol.AveragingParticles:
    return ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), lr))


def weighted(weights: list[float], device: str = "cpu") -> ol.AveragingParticles:
    """Untrained walkers with these weights."""
    filter = averaging(ol.Ensemble(Walker, len(weights), seed=2, device=device))
    set_weights(filter, weights)
    return filter


def set_weights(filter: Any, weights: list[float]) -> None:
    filter.raw_log_weights.copy_(torch.tensor(weights, dtype=torch.float64).log())


def assert_same_networks(left: ol.Ensemble, right: ol.Ensemble) -> None:
    for ours, theirs in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.equal(ours, theirs)
