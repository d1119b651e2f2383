"""On a GPU PPO runs from recorded graphs, and learns what it learns on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.toys import (
    Corridor,
    Walker,
    game_cell,
    make_walker,
    result_of,
    tiny_expert,
    walk,
    weighted_walkers,
)

import orderless as ol
from orderless_lab.rl import PPO, MixturePolicy, PPOSettings
from orderless_lab.rl.cloning import play_both

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("act", ["mixture", "episode"])
def test_a_recorded_decision_is_the_one_on_the_cpu(act: str) -> None:
    """The first decision is eager, the second is recorded, the others are replayed."""
    policies = [
        MixturePolicy(weighted_walkers([0.5, 0.3, 0.2], device), 16, 3, act=act)
        for device in ("cpu", "cuda")
    ]
    generator = np.random.default_rng(0)
    for number in range(6):
        frames = generator.normal(size=(16, 6)).astype(np.float32)
        first = generator.random(16) < (0.3 if number else 2.0)
        for ours, theirs in zip(*(policy(frames, first) for policy in policies), strict=True):
            torch.testing.assert_close(ours, theirs.cpu())


@pytest.mark.parametrize("weigh_by", ["loss", "policy"])
def test_the_gpu_learns_what_the_cpu_learns(weigh_by: Any) -> None:
    settings = PPOSettings(steps=32, minibatches=4, discount=0.95, weigh_by=weigh_by)
    infos = []
    for device in ("cpu", "cuda"):
        particles = ol.Ensemble(Walker, 3, seed=0, device=device)
        optimizer = torch.optim.SGD(particles.parameters(), lr=1e-2)
        filter = ol.WeightedParticleFilter(particles, optimizer, max_grad_norm=0.5)
        infos.append(PPO(filter, Corridor(8), settings).learn(3 * 8 * 32))
    cpu, cuda = infos
    # 36 steps of float32 in other kernels, on the same actions
    for name in ("policy", "value", "entropy", "importance", "log_weight_parts", "log_weights"):
        ours = getattr(cuda, name).cpu()
        torch.testing.assert_close(ours, getattr(cpu, name), atol=1e-3, rtol=1e-3)


def test_episodes_played_from_a_recording_are_those_on_the_cpu() -> None:
    filters = [weighted_walkers([0.5, 0.3, 0.2], device) for device in ("cpu", "cuda")]
    scores = [play_both(filter, Corridor(24), episodes=2, seed=3) for filter in filters]
    for combine, score in scores[0].items():
        assert (score.episodes == scores[1][combine].episodes).all()


def test_a_penalty_that_came_after_a_recording_holds_as_on_the_cpu() -> None:
    ends = []
    for device in ("cpu", "cuda"):
        learner = make_walker(300.0, device)
        walk(learner, 0, rounds=3)
        walk(learner, 1, rounds=3)
        ends.append([p.detach().cpu() for p in learner.filter.particles.parameters()])
    # 72 steps of float32 in other kernels, on the same actions
    torch.testing.assert_close(*ends, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("course", "method"),
    [
        ("procgen-lifelong", "ppo+ewc+wpf"),
        ("procgen-lifelong", "ppo+bootstrap"),
        ("procgen-bc", "bc+wpf"),
    ],
)
def test_a_cell_on_the_gpu(course: str, method: str, tmp_path: Path) -> None:
    expert = str(tiny_expert(tmp_path))
    cell = game_cell(course, method, expert=expert, precision="bf16", network="impala")
    record = result_of(cell, tmp_path, device="cuda")
    assert record["died_at"] is None
    assert np.isfinite(record["scores"]["particles"][-1]).all()
