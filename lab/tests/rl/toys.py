"""What the tests of rl share: a corridor to walk, policies and filters for it, and the cells of
ProcGen's benchmarks in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from lab.tests.toys import without_time
from torch import Tensor, nn

import orderless as ol
from orderless_lab.methods.learners.policy import PolicyLearner
from orderless_lab.rl import PPO, Compact, PPOSettings, VectorEnvironment, policy_logits
from orderless_lab.rl.experts import Expert, save_expert
from orderless_lab.runs import Cell, Store
from orderless_lab.suites import find_suite
from orderless_lab.suites.procgen import PROCGEN_BC, PROCGEN_LIFELONG


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


GAME = "fruitbot"  # untrained policies do not last long there
PLAYED = {"envs": 4, "rollout": 8, "minibatches": 2, "steps_per_level": 3 * 32, "bins": 3}
CLONED = {"transitions": 96, "batch_size": 16, "episodes": 2}
TINY = {
    "procgen-lifelong": PROCGEN_LIFELONG.preset("demo").settings.changed(
        particles=2, fisher_samples=16, **PLAYED
    ),
    "procgen-bc": PROCGEN_BC.preset("demo").settings.changed(particles=2, **CLONED),
}


def tiny_expert(folder: Path, game: str = GAME, seed: int = 0) -> Path:
    """An expert's file without the training."""
    torch.manual_seed(seed)
    random = {"mean": 0.0, "standard_error": 0.0, "episodes": 0}
    returns = {name: {"expert": random, "random": random} for name in ("training", "held_out")}
    facts = {"game": game, "network": "compact", "levels": 5, "envs": 2, "seed": seed, "steps": 0}
    path = folder / f"{game}.safetensors"
    save_expert(path, Expert(Compact(), {**facts, "returns": returns}))
    return path


def tiny_cell(benchmark: str, method: str, order: tuple[int, ...] = (1, 0), **changes: Any) -> Cell:
    usual = TINY[benchmark]
    settings = usual.changed(**{key: v for key, v in changes.items() if key in usual.known()})
    return Cell(benchmark, GAME, "demo", method, 0, order, 0, settings)


def make_run(cell: Cell, folder: Path, device: str = "cpu", **options: Any) -> Any:
    store = Store(folder / "run")
    store.prepare()
    suite = find_suite(cell.benchmark)
    tasks = suite.load(cell.variant, cell.settings, cell.seed, str(folder), device)
    return suite.runner(cell, tasks, store, **options)


def record_of(cell: Cell, folder: Path, **options: Any) -> dict[str, Any]:
    return without_time(make_run(cell, folder, **options).run("the command"))


def make_walker(strength: float | None, device: str = "cpu") -> PolicyLearner:
    particles = ol.Ensemble(Walker, 2, seed=0, device=device)
    optimizer = torch.optim.SGD(particles.parameters(), lr=1e-2)
    filter = ol.AveragingParticles(particles, optimizer)
    ewc = None
    if strength is not None:
        ewc = ol.EWC(particles, strength, fisher="exact", logits=policy_logits)
    settings = PPOSettings(steps=16, minibatches=4)
    return PolicyLearner(Corridor(8), filter, settings, consolidation=ewc)


def walk(learner: PolicyLearner, level: int, rounds: int = 5) -> None:
    """One level from its beginning to its end."""
    learner.begin_level(level)
    for _ in range(rounds):
        learner.collect()
        learner.update()
    learner.end_level()
