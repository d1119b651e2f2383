"""ProcGen's benchmarks in seconds: small networks, few copies, few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lab.tests.rl.toys import Corridor, Walker

import orderless as ol
from orderless_lab.experiments import Cell, Store
from orderless_lab.experiments.benchmarks import find_benchmark
from orderless_lab.experiments.grid import runner_of
from orderless_lab.methods.learners.policy import PolicyLearner
from orderless_lab.methods.presets import POLICY_PRESETS
from orderless_lab.rl import Compact, PPOSettings, policy_logits
from orderless_lab.rl.experts import Expert, save_expert
from orderless_lab.storage.typed import as_json

GAME = "fruitbot"  # untrained policies do not last long there
SETTINGS = POLICY_PRESETS["demo"].changed(
    particles=2,
    envs=4,
    rollout=8,
    minibatches=2,
    steps_per_level=3 * 32,
    bins=3,
    transitions=96,
    batch_size=16,
    episodes=2,
    fisher_samples=16,
)


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
    settings = SETTINGS.changed(**changes)
    return Cell(benchmark, GAME, "demo", method, 0, order, 0, settings)


def make_run(cell: Cell, folder: Path, device: str = "cpu", **options: Any) -> Any:
    store = Store(folder / "run")
    store.prepare()
    tasks = find_benchmark(cell.benchmark).scenario(
        cell.scenario, cell.settings, cell.seed, str(folder), device
    )
    return runner_of(cell, tasks, store, **options)


def record_of(cell: Cell, folder: Path, **options: Any) -> dict[str, Any]:
    return without_time(make_run(cell, folder, **options).run("the command"))


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    record = as_json(record)
    del record["duration"]
    record.pop("scoring_duration", None)
    return record


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
