"""PPO over particles: it learns, it reports what moved the weights, it resumes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.rl.corridor import Corridor, Walker
from tests.filters.oracles import assert_identical
from torch import nn

import orderless as ol
from orderless_lab.rl import PPO, LineageBootstrapFilter, PolicyWeightedFilter, PPOSettings

SETTINGS = PPOSettings(steps=32, minibatches=4, discount=0.95)
BY_POLICY = PPOSettings(steps=32, minibatches=4, discount=0.95, weigh_by="policy")


def make(kind: type, n: int, settings: PPOSettings = SETTINGS, **options: Any) -> PPO:
    particles = ol.Ensemble(Walker, n, seed=0)
    optimizer = torch.optim.Adam(particles.parameters(), lr=1e-2)
    return PPO(kind(particles, optimizer, max_grad_norm=0.5), Corridor(8), settings, **options)


@pytest.mark.parametrize(
    ("kind", "n", "settings"),
    [
        (ol.WeightedParticleFilter, 3, SETTINGS),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (ol.GradientDescent, 1, SETTINGS),
                (PolicyWeightedFilter, 3, BY_POLICY),
                (ol.AveragingParticles, 3, PPOSettings(steps=32, minibatches=4, act="episode")),
            )
        ),
    ],
)
def test_it_learns_to_walk_to_the_end(kind: type, n: int, settings: PPOSettings) -> None:
    ppo = make(kind, n, settings)
    ppo.learn(10 * 8 * 32)
    episodes = ppo.take_episodes()
    first, last = episodes[:40], episodes[-40:]
    assert sum(e.value for e in first) / 40 < 0.6  # +1 at the right end, -1 at the left
    assert sum(e.value for e in last) / 40 > 0.9
    assert ppo.take_episodes() == []


@pytest.mark.parametrize(
    ("kind", "settings"), [(ol.WeightedParticleFilter, SETTINGS), (PolicyWeightedFilter, BY_POLICY)]
)
def test_the_parts_of_a_log_weight_add_up_to_it(kind: type, settings: PPOSettings) -> None:
    ppo = make(kind, 3, settings)
    before = ppo.filter.raw_log_weights.clone()
    info = ppo.update(ppo.collect())
    grown = before + info.log_weight_parts.sum(0)
    # the loss is float32, and 12 of them are added
    torch.testing.assert_close(grown.log_softmax(0), info.log_weights, atol=1e-5, rtol=0)
    assert not torch.equal(info.log_weights, before)
    if kind is PolicyWeightedFilter:
        assert not info.log_weight_parts[1:].any()


def test_weights_by_policy_see_the_first_epoch_only() -> None:
    once, thrice = (
        make(PolicyWeightedFilter, 3, PPOSettings(32, epochs, 4, weigh_by="policy"))
        for epochs in (1, 3)
    )
    for ppo in (once, thrice):
        ppo.update(ppo.collect())
    torch.testing.assert_close(once.filter.log_weights, thrice.filter.log_weights)
    assert not torch.equal(once.particles.policy.bias, thrice.particles.policy.bias)


def test_weights_by_policy_favour_the_particle_that_makes_good_actions_likely() -> None:
    """Particle 0 walks right, particle 1 left; nobody moves, so only the weights learn."""
    particles = ol.Ensemble(Walker, 2, seed=0)
    with torch.no_grad():
        particles.policy.weight.zero_()
        particles.policy.bias.copy_(torch.tensor([[-1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]))
    optimizer = torch.optim.SGD(particles.parameters(), lr=0.0)
    ppo = PPO(PolicyWeightedFilter(particles, optimizer), Corridor(8), BY_POLICY)
    ppo.learn(3 * 8 * 32)
    assert ppo.filter.weights[0] > 0.9


def test_particles_of_one_network_stay_alike_and_keep_uniform_weights() -> None:
    network = ol.Ensemble(Walker, 1, seed=0)[0]
    particles = ol.Ensemble.from_modules([network] * 3)
    filter = ol.WeightedParticleFilter(particles, torch.optim.Adam(particles.parameters(), 1e-2))
    info = PPO(filter, Corridor(8), SETTINGS).learn(3 * 8 * 32)
    assert info is not None
    torch.testing.assert_close(filter.weights, torch.full((3,), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(particles.policy.bias[0], particles.policy.bias[2])
    torch.testing.assert_close(info.importance, torch.ones(3, dtype=torch.float64))


def test_the_bootstrap_filter_plays_too_and_knows_its_ancestors() -> None:
    particles = ol.Ensemble(Walker, 8, seed=0)
    with torch.no_grad():
        particles.value.bias.copy_(torch.arange(8.0).unsqueeze(1))  # some value better than others
    filter = LineageBootstrapFilter(particles, perturbation=0.0)
    weight = particles.get_parameter("body.0.weight")
    bodies = weight.detach().clone()
    ppo = PPO(filter, Corridor(8), SETTINGS)
    ppo.learn(8 * 32)
    assert len(filter.lineage.unique()) < 8  # somebody was resampled away
    assert torch.equal(weight.detach(), bodies[filter.lineage])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"), [(ol.WeightedParticleFilter, SETTINGS), (PolicyWeightedFilter, BY_POLICY)]
)
@pytest.mark.parametrize("bias", [1e30, float("nan")])  # the square of 1e30 is infinite
def test_a_dead_particle_does_not_stop_the_others(
    kind: type, settings: PPOSettings, bias: float
) -> None:
    ppo = make(kind, 3, settings)
    with torch.no_grad():
        ppo.particles.value.bias[1] = bias
    info = ppo.learn(2 * 8 * 32)
    assert info is not None and info.alive.tolist() == [True, False, True]
    assert all(value == value for value in info.summary().values())  # no NaN


def test_a_penalty_holds_particles_back() -> None:
    plain, held = make(ol.AveragingParticles, 2), make(ol.AveragingParticles, 2)
    start = held.particles.policy.weight.detach().clone()

    def distance(ppo: PPO) -> torch.Tensor:
        return (ppo.particles.policy.weight - start).square().sum((1, 2))

    held.set_penalty(lambda *minibatch: 100.0 * distance(held))
    for ppo in (plain, held):
        ppo.learn(2 * 8 * 32)
    assert (distance(held) < 0.1 * distance(plain)).all()


@pytest.mark.parametrize("act", ["mixture", "episode"])
def test_a_resumed_run_goes_on_bit_for_bit(act: str, tmp_path: Path) -> None:
    settings = PPOSettings(steps=32, minibatches=4, act=act)
    whole = make(ol.WeightedParticleFilter, 3, settings, seed=3)
    whole.learn(8 * 32)
    ol.save(tmp_path / "run.safetensors", whole)
    resumed = make(ol.WeightedParticleFilter, 3, settings, seed=3)
    ol.load(tmp_path / "run.safetensors", into=resumed)
    for ppo in (whole, resumed):
        ppo.learn(8 * 32)
    assert whole.steps == resumed.steps and whole.episodes == resumed.episodes
    assert torch.equal(whole.filter.raw_log_weights, resumed.filter.raw_log_weights)
    for ours, theirs in zip(
        whole.particles.parameters(), resumed.particles.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="weigh_by='policy' does not go with Weighted"):
        make(ol.WeightedParticleFilter, 2, BY_POLICY)
    with pytest.raises(ValueError, match="weigh_by='loss' does not go with PolicyWeighted"):
        make(PolicyWeightedFilter, 2)
    with pytest.raises(ValueError, match="do not divide into 7 minibatches"):
        make(ol.AveragingParticles, 2, PPOSettings(steps=32, minibatches=7))
    particles = ol.Ensemble(Walker, 2)
    with pytest.raises(TypeError, match="use LineageBootstrapFilter"):
        PPO(ol.BootstrapParticleFilter(particles, perturbation=0.1), Corridor(8), SETTINGS)
    classifiers = ol.Ensemble(lambda: nn.Linear(6, 3), 2)
    filter = ol.AveragingParticles(classifiers, torch.optim.SGD(classifiers.parameters(), 0.1))
    with pytest.raises(TypeError, match=r"a network that returns \(logits, values\)"):
        PPO(filter, Corridor(8), SETTINGS).collect()
    with pytest.raises(TypeError, match="minibatches must be a whole number, got 2.0"):
        PPOSettings(minibatches=2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="settings must be PPOSettings, got dict"):
        make(ol.AveragingParticles, 2, {"steps": 8})  # type: ignore[arg-type]
    walkers = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), 0.1))
    with pytest.raises(TypeError, match="seed must be a whole number, got None"):
        PPO(walkers, Corridor(8), SETTINGS, seed=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="env must be a VectorEnvironment, got Walker"):
        PPO(walkers, Walker(), SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="PPO needs at least one environment"):
        PPO(walkers, [], SETTINGS)
    corridor, other = Corridor(4), Corridor(4)
    with pytest.raises(ValueError, match="environment 1 is also an earlier one"):
        PPO(walkers, [corridor, corridor], SETTINGS)
    with pytest.raises(
        ValueError, match=r"environment 1 shows float32 \(9,\), the first float32 \(6"
    ):
        PPO(walkers, [corridor, Corridor(4, length=9)], SETTINGS)
    with pytest.raises(ValueError, match="this state is of 2 environments that take turns, not 1"):
        make(ol.AveragingParticles, 2).load_state_dict(
            PPO(walkers, [corridor, Corridor(4)], SETTINGS).state_dict()
        )
    other.actions = 5
    with pytest.raises(ValueError, match="environment 1 has 5 actions and is at level 0, the firs"):
        PPO(walkers, [corridor, other], SETTINGS)
    with pytest.raises(TypeError, match="Corridor has no levels"):
        make(ol.AveragingParticles, 2).switch(3)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    """Each part of a good state in turn is replaced by one that cannot be loaded."""
    ppo, other = make(ol.WeightedParticleFilter, 2), make(ol.WeightedParticleFilter, 2)
    ppo.learn(1)
    other.learn(2 * ppo.steps)
    before, good = copy.deepcopy(ppo.state_dict()), other.state_dict()
    bad = {
        "filter": make(ol.WeightedParticleFilter, 3).state_dict()["filter"],
        "policy": {**good["policy"], "seed": 7},
        "scaler": {**good["scaler"], "moments": [1.0]},
        "steps": "many",
        "draws": [[1, 2, 3]],
        "updates": [None],
        "episodes": [[1, 2]],
    }
    for name, part in bad.items():
        with pytest.raises((ValueError, TypeError)):
            ppo.load_state_dict({**good, name: part})
        assert_identical(ppo.state_dict(), before, name)
    with pytest.raises(KeyError):
        ppo.load_state_dict({name: part for name, part in good.items() if name != "episodes"})
    assert_identical(ppo.state_dict(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"discount": 1.5}, r"discount must lie in \[0, 1\], got 1.5"),
        ({"clip": 0.0}, "clip must be positive, got 0.0"),
        ({"entropy_coefficient": float("nan")}, "entropy_coefficient must be at least 0, got nan"),
        ({"value_coefficient": -1.0}, "value_coefficient must be at least 0, got -1.0"),
        ({"act": "greedy"}, "act must be 'mixture' or 'episode', got 'greedy'"),
        ({"weigh_by": "return"}, "weigh_by must be 'loss' or 'policy', got 'return'"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPOSettings(**options)


def test_a_particle_plays_from_the_first_frame_of_an_episode_to_its_end() -> None:
    settings = PPOSettings(steps=1, minibatches=1, act="episode")
    ppo = make(ol.AveragingParticles, 3, settings)
    ppo.collect()
    playing, redrawn = ppo.policy.playing.clone(), 0
    assert len(playing.unique()) > 1  # also the very first episodes have their particle
    for _ in range(60):
        first = torch.from_numpy(ppo.env.first.copy())
        ppo.collect()
        changed = ppo.policy.playing != playing
        assert not changed[~first].any()
        playing, redrawn = ppo.policy.playing.clone(), redrawn + int(changed.sum())
    assert redrawn > 5


@pytest.mark.parametrize("act", ["episode", pytest.param("mixture", marks=pytest.mark.slow)])
def test_environments_that_take_turns_are_as_one(act: str) -> None:
    """What is learned, what is drawn and what is counted; also after a resume in between."""

    def make_turns(*sizes: int) -> PPO:
        particles = ol.Ensemble(Walker, 3, seed=0)
        optimizer = torch.optim.Adam(particles.parameters(), lr=1e-2)
        settings = PPOSettings(steps=16, minibatches=4, act=act)
        filter = ol.WeightedParticleFilter(particles, optimizer)
        return PPO(filter, [Corridor(size) for size in sizes], settings)

    one, turns = make_turns(8), make_turns(3, 1, 4)
    for _ in range(2):
        once, parts = one.collect(), turns.collect()
        assert torch.equal(once.actions, parts.actions)
        for name in ("observations", "rewards", "terminated", "truncated", "valid", "values"):
            torch.testing.assert_close(getattr(once, name), getattr(parts, name))
        one.update(once)
        turns.update(parts)
    assert one.steps == turns.steps == 2 * 8 * 16
    assert one.take_episodes() == turns.take_episodes() != []
    again = make_turns(3, 1, 4)
    again.load_state_dict(turns.state_dict())
    for ppo in (one, turns, again):
        ppo.learn(1)
    assert one.take_episodes() == turns.take_episodes() == again.take_episodes()
    for ours, theirs, same in zip(
        one.particles.parameters(),
        turns.particles.parameters(),
        again.particles.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
        assert torch.equal(theirs, same)
