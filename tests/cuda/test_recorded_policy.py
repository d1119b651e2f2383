"""A recorded decision is the eager one, and PPO runs from recorded graphs."""

from __future__ import annotations

import pytest
import torch
from lab.tests.rl.corridor import Corridor, Walker

import orderless as ol
from orderless_lab.rl import PPO, MixturePolicy, PolicyWeightedFilter, PPOSettings
from orderless_lab.rl.cloning import play_both


@pytest.mark.parametrize("act", ["mixture", "episode"])
def test_a_recorded_decision_is_the_eager_one(act: str) -> None:
    particles = ol.Ensemble(Walker, 3, seed=0, device="cuda")
    filter = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), 0.1))
    recorded, eager = (MixturePolicy(filter, 16, act=act) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for number in range(6):
        frames = torch.randn(16, 6, generator=generator).cuda()
        first = torch.rand(16, generator=generator).cuda() < (0.3 if number else 2.0)
        eager._graphs.clear()  # as if it had never run
        for ours, theirs in zip(recorded(frames, first), eager(frames, first), strict=True):
            torch.testing.assert_close(ours, theirs)
    place = "decide", 0, 16
    assert recorded._graphs[place] is not None and eager._graphs[place] is None


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (5, 3)])
@pytest.mark.parametrize("kind", [ol.WeightedParticleFilter, PolicyWeightedFilter])
def test_the_gpu_learns_what_the_cpu_learns(kind: type, sizes: tuple[int, ...]) -> None:
    """Also from environments that take turns, where the CPU has one."""
    weigh_by = "policy" if kind is PolicyWeightedFilter else "loss"
    settings = PPOSettings(steps=32, minibatches=4, discount=0.95, weigh_by=weigh_by)
    infos = []
    for device, parts in (("cpu", (8,)), ("cuda", sizes)):
        particles = ol.Ensemble(Walker, 3, seed=0, device=device)
        optimizer = torch.optim.SGD(particles.parameters(), lr=1e-2)
        filter = kind(particles, optimizer, max_grad_norm=0.5)
        ppo = PPO(filter, [Corridor(size) for size in parts], settings)
        infos.append(ppo.learn(3 * 8 * 32))
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
