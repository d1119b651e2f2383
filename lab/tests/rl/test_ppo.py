"""PPO over particles: it learns, it reports what moved the weights, it resumes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.rl.corridor import Corridor, Walker
from torch import nn

import orderless as ol
from orderless_lab.rl import PPO, LineageBootstrapFilter, PPOSettings

SETTINGS = PPOSettings(steps=32, minibatches=4, discount=0.95)
BY_POLICY = PPOSettings(steps=32, minibatches=4, discount=0.95, weigh_by="policy")


def make(kind: Any, n: int, settings: PPOSettings = SETTINGS, **options: Any) -> PPO:
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
                (ol.WeightedParticleFilter, 3, BY_POLICY),
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


@pytest.mark.parametrize("settings", [SETTINGS, BY_POLICY])
def test_the_parts_of_a_log_weight_add_up_to_it(settings: PPOSettings) -> None:
    ppo = make(ol.WeightedParticleFilter, 3, settings)
    before = ppo.filter.raw_log_weights.clone()
    info = ppo.update(ppo.collect())
    grown = before + info.log_weight_parts.sum(0)
    # the loss is float32, and 12 of them are added
    torch.testing.assert_close(grown.log_softmax(0), info.log_weights, atol=1e-5, rtol=0)
    assert not torch.equal(info.log_weights, before)
    if settings is BY_POLICY:
        assert not info.log_weight_parts[1:].any()


def test_weights_by_policy_see_the_first_epoch_only() -> None:
    once, thrice = (
        make(ol.WeightedParticleFilter, 3, PPOSettings(32, epochs, 4, weigh_by="policy"))
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
    ppo = PPO(ol.WeightedParticleFilter(particles, optimizer), Corridor(8), BY_POLICY)
    ppo.learn(3 * 8 * 32)
    assert ppo.filter.weights[0] > 0.9


def test_weights_by_policy_move_particles_as_weights_by_loss_do() -> None:
    """With the same gradient to the bit: one minibatch, so that both play with equal weights."""
    once = {"steps": 32, "epochs": 3, "minibatches": 1}
    by_loss, by_policy = (
        make(ol.WeightedParticleFilter, 3, PPOSettings(**once, weigh_by=weigh_by))  # type: ignore[arg-type]
        for weigh_by in ("loss", "policy")
    )
    held = {}
    for ppo in (by_loss, by_policy):
        start = ppo.particles.policy.weight.detach().clone()
        ppo.set_penalty(
            lambda *minibatch, ppo=ppo, start=start: (
                (ppo.particles.policy.weight - start).square().sum((1, 2))
            )
        )
        ppo.update(ppo.collect())
        held[ppo] = list(ppo.particles.parameters())
    for ours, theirs in zip(held[by_loss], held[by_policy], strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(by_loss.filter.log_weights, by_policy.filter.log_weights)


def test_weights_by_policy_follow_the_energies() -> None:
    """log w -= (U(x_t) + U(x_{t+1})) / 2 over the steps of the first epoch."""
    ppo = make(ol.WeightedParticleFilter, 3, BY_POLICY)
    energies = []
    surrogate = ppo.loss

    def watched(*minibatch: torch.Tensor) -> Any:
        energy, loss = surrogate(*minibatch)
        energies.append(energy.detach().double())
        return energy, loss

    ppo.loss = watched  # type: ignore[assignment]
    ppo.set_penalty(None)
    ppo.loss = surrogate
    ppo.update(ppo.collect())
    first_epoch = energies[: 2 * BY_POLICY.minibatches]
    expected = (-torch.stack(first_epoch).sum(0) / 2).log_softmax(0)
    torch.testing.assert_close(ppo.filter.log_weights, expected)


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
@pytest.mark.parametrize("settings", [SETTINGS, BY_POLICY])
@pytest.mark.parametrize("bias", [1e30, float("nan")])  # the square of 1e30 is infinite
def test_a_dead_particle_does_not_stop_the_others(settings: PPOSettings, bias: float) -> None:
    ppo = make(ol.WeightedParticleFilter, 3, settings)
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
    with pytest.raises(ValueError, match="needs a WeightedParticleFilter .* got Averaging"):
        make(ol.AveragingParticles, 2, BY_POLICY)
    linearized = partial(ol.WeightedParticleFilter, weighting="linearized")
    with pytest.raises(ValueError, match="with weighting='trapezoid'"):
        make(linearized, 2, BY_POLICY)
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
    with pytest.raises(TypeError, match="Corridor has no levels"):
        make(ol.AveragingParticles, 2).switch(3)


def test_a_state_that_does_not_fit_is_refused() -> None:
    """Each part of a good state in turn is replaced by one that cannot be loaded."""
    good = make(ol.WeightedParticleFilter, 2).state_dict()
    bad = {
        "filter": make(ol.WeightedParticleFilter, 3).state_dict()["filter"],
        "policy": {**good["policy"], "seed": 7},  # type: ignore[dict-item]
        "scaler": {**good["scaler"], "moments": [1.0]},  # type: ignore[dict-item]
        "steps": "many",
        "draws": [[1, 2, 3]],
        "updates": [None],
        "episodes": [[1, 2]],
    }
    for name, part in bad.items():
        with pytest.raises((ValueError, TypeError)):
            make(ol.WeightedParticleFilter, 2).load_state_dict({**good, name: part})
    make(ol.WeightedParticleFilter, 2).load_state_dict(good)


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
