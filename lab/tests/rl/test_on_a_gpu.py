"""On a GPU PPO runs from recorded graphs, and learns what it learns on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lab.tests.rl.corridor import Corridor, Walker
from lab.tests.rl.tiny_policies import record_of, tiny_cell, tiny_expert
from lab.tests.rl.walking import make_walker, walk

import orderless as ol
from orderless_lab.rl import PPO, MixturePolicy, PPOSettings
from orderless_lab.rl.cloning import play_both

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("act", ["mixture", "episode"])
def test_a_recorded_decision_is_the_eager_one(act: str) -> None:
    particles = ol.Ensemble(Walker, 3, seed=0, device="cuda")
    filter = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), 0.1))
    recorded, eager = (MixturePolicy(filter, 16, 3, act=act) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for number in range(6):
        frames = torch.randn(16, 6, generator=generator).cuda()
        first = torch.rand(16, generator=generator).cuda() < (0.3 if number else 2.0)
        eager._graphs.clear()  # as if it had never run
        for ours, theirs in zip(recorded(frames, first), eager(frames, first), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert recorded._graphs["decide"] is not None and eager._graphs["decide"] is None


@pytest.mark.parametrize("weigh_by", ["loss", "policy"])
def test_the_gpu_learns_what_the_cpu_learns(weigh_by: str) -> None:
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
        torch.testing.assert_close(
            getattr(cuda, name).cpu(), getattr(cpu, name), atol=1e-3, rtol=1e-3
        )


def test_episodes_played_from_a_recording_are_those_on_the_cpu() -> None:
    scores = []
    for device in ("cpu", "cuda"):
        particles = ol.Ensemble(Walker, 3, seed=0, device=device)
        filter = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), 0.1))
        scores.append(play_both(filter, Corridor(24), episodes=2, seed=3))
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
    ("course", "method", "precision"),
    [
        ("procgen-lifelong", "ppo+ewc+wpf", "bf16"),
        ("procgen-lifelong", "ppo+trac+wpf", "float32"),
        ("procgen-lifelong", "ppo+bootstrap", "bf16"),
        ("procgen-bc", "bc+wpf", "bf16"),
    ],
)
def test_a_cell_on_the_gpu(course: str, method: str, precision: str, tmp_path: Path) -> None:
    expert = str(tiny_expert(tmp_path))
    cell = tiny_cell(course, method, expert=expert, precision=precision, network="impala")
    record = record_of(cell, tmp_path, device="cuda")
    assert record["died_at"] is None and record["alive"] == 2
    assert np.isfinite(record["scores"]["accuracy"][-1]).all()
