"""PPO over particles: it learns, it reports what moved the weights, it resumes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.toys import (
    PPO_SETTINGS,
    Corridor,
    Walker,
    assert_same_networks,
    averaging,
    make_ppo,
)
from torch import nn

import orderless as ol
from orderless_lab.rl import PPO, LineageBootstrapFilter, PPOSettings, advantages

BY_POLICY = replace(PPO_SETTINGS, weigh_by="policy")
ROUND = 8 * 32  # steps


@pytest.mark.parametrize(
    ("kind", "n", "settings"),
    [
        (ol.WeightedParticleFilter, 3, PPO_SETTINGS),
        pytest.param(ol.WeightedParticleFilter, 3, BY_POLICY, marks=pytest.mark.slow),
        pytest.param(
            ol.AveragingParticles, 3, replace(PPO_SETTINGS, act="episode"), marks=pytest.mark.slow
        ),
    ],
)
def test_it_learns_to_walk_to_the_end(kind: type, n: int, settings: PPOSettings) -> None:
    ppo = make_ppo(kind, n, settings)
    ppo.learn(10 * ROUND)
    episodes = ppo.take_episodes()
    assert sum(e.value for e in episodes[:40]) / 40 < 0.6  # +1 at the right end, -1 at the left
    assert sum(e.value for e in episodes[-40:]) / 40 > 0.9
    assert ppo.take_episodes() == []


@pytest.mark.parametrize("settings", [PPO_SETTINGS, BY_POLICY])
def test_the_parts_of_a_log_weight_add_up_to_it(settings: PPOSettings) -> None:
    ppo = make_ppo(ol.WeightedParticleFilter, 3, settings)
    before = ppo.filter.raw_log_weights.clone()
    info = ppo.update(ppo.collect())
    grown = before + info.log_weight_parts.sum(0)
    # the loss is float32, and 12 of them are added
    torch.testing.assert_close(grown.log_softmax(0), info.log_weights, atol=1e-5, rtol=0)
    assert not torch.equal(info.log_weights, before)
    assert info.log_weight_parts[1:].any() == (settings is PPO_SETTINGS)


def test_weights_by_policy_favour_the_particle_that_makes_good_actions_likely() -> None:
    """Particle 0 walks right, particle 1 left; nobody moves, so only the weights learn."""
    particles = ol.Ensemble(Walker, 2, seed=0)
    with torch.no_grad():
        particles.policy.weight.zero_()
        particles.policy.bias.copy_(torch.tensor([[-1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]))
    optimizer = torch.optim.SGD(particles.parameters(), lr=0.0)
    ppo = PPO(ol.WeightedParticleFilter(particles, optimizer), Corridor(8), BY_POLICY)
    ppo.learn(3 * ROUND)
    assert ppo.filter.weights[0] > 0.9


def test_weights_by_policy_move_particles_as_weights_by_loss_do() -> None:
    """With the same gradient to the bit: one minibatch, so that both play with equal weights."""
    ends = []
    for settings in (PPO_SETTINGS, BY_POLICY):
        ppo = make_ppo(ol.WeightedParticleFilter, 3, replace(settings, minibatches=1))
        bias = ppo.particles.policy.bias
        ppo.set_penalty(lambda *minibatch, bias=bias: (bias - 1.0).square().sum(1))
        ppo.update(ppo.collect())
        ends.append(ppo)
    assert_same_networks(ends[0].particles, ends[1].particles)
    assert not torch.equal(ends[0].filter.log_weights, ends[1].filter.log_weights)


def test_the_bootstrap_filter_plays_too_and_knows_its_ancestors() -> None:
    particles = ol.Ensemble(Walker, 8, seed=0)
    with torch.no_grad():
        particles.value.bias.copy_(torch.arange(8.0).unsqueeze(1))  # some value better than others
    filter = LineageBootstrapFilter(particles, perturbation=0.0)
    weight = particles.get_parameter("body.0.weight")
    bodies = weight.detach().clone()
    PPO(filter, Corridor(8), PPO_SETTINGS).learn(ROUND)
    assert len(filter.lineage.unique()) < 8  # somebody was resampled away
    assert torch.equal(weight.detach(), bodies[filter.lineage])


@pytest.mark.slow
@pytest.mark.parametrize("settings", [PPO_SETTINGS, BY_POLICY])
@pytest.mark.parametrize("bias", [1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("dead", [[1], [0, 2]])
def test_a_dead_particle_does_not_stop_the_others(
    settings: PPOSettings, bias: float, dead: list[int]
) -> None:
    """One of three, or all but one; the square of 1e30 is infinite."""
    ppo = make_ppo(ol.WeightedParticleFilter, 3, settings)
    with torch.no_grad():
        ppo.particles.value.bias[dead] = bias
    info = ppo.learn(2 * ROUND)
    assert info is not None
    assert info.alive.tolist() == [number not in dead for number in range(3)]
    assert all(value == value for value in info.summary().values())  # no NaN


@pytest.mark.parametrize("act", ["mixture", "episode"])
def test_a_resumed_run_goes_on_bit_for_bit(act: Any, tmp_path: Path) -> None:
    settings = replace(PPO_SETTINGS, act=act)
    whole = make_ppo(ol.WeightedParticleFilter, 3, settings, seed=3)
    whole.learn(ROUND)
    ol.save(tmp_path / "run.safetensors", whole)
    resumed = make_ppo(ol.WeightedParticleFilter, 3, settings, seed=3)
    ol.load(tmp_path / "run.safetensors", into=resumed)
    for ppo in (whole, resumed):
        ppo.learn(ROUND)
    assert whole.steps == resumed.steps
    assert whole.episodes == resumed.episodes
    assert torch.equal(whole.filter.raw_log_weights, resumed.filter.raw_log_weights)
    assert_same_networks(whole.particles, resumed.particles)


def test_what_does_not_fit_together_is_refused() -> None:
    particles = ol.Ensemble(Walker, 2)
    linearized = partial(ol.WeightedParticleFilter, weighting="linearized")
    for kind in (ol.AveragingParticles, linearized):
        with pytest.raises(ValueError, match="weigh_by='policy' needs"):
            make_ppo(kind, 2, BY_POLICY)
    with pytest.raises(ValueError, match="7 minibatches"):
        make_ppo(ol.AveragingParticles, 2, PPOSettings(steps=32, minibatches=7))
    with pytest.raises(TypeError, match="LineageBootstrapFilter"):
        PPO(ol.BootstrapParticleFilter(particles, perturbation=0.1), Corridor(8))  # type: ignore[arg-type]
    classifiers = ol.Ensemble(lambda: nn.Linear(6, 3), 2)
    with pytest.raises(TypeError, match=r"\(logits, values\)"):
        PPO(averaging(classifiers), Corridor(8), PPO_SETTINGS).collect()
    with pytest.raises(TypeError, match="env must be a VectorEnvironment, got Walker"):
        PPO(averaging(particles), Walker(), PPO_SETTINGS)  # type: ignore[arg-type]
    flags = torch.zeros(3, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"values must have shape \[N, 4, 1\]"):
        advantages(torch.zeros(3, 1), torch.zeros(1, 3, 1), *[flags] * 3, discount=1, trace=1)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"minibatches": 2.0},
        {"discount": 1.5},
        {"clip": 0.0},
        {"entropy_coefficient": float("nan")},
        {"act": "greedy"},
    ],
)
def test_bad_settings_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        PPOSettings(**options)
