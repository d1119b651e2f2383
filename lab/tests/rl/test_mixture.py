"""Who acts, and with what probability."""

from __future__ import annotations

import pytest
import torch
from lab.tests.rl.corridor import Walker

import orderless as ol
from orderless_lab.rl import MixturePolicy, mixture_log_probabilities


def weighted(n: int, weights: list[float]) -> ol.ParticleFilter:
    particles = ol.Ensemble(Walker, n, seed=2)
    filter = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), 0.1))
    filter.raw_log_weights.copy_(torch.tensor(weights, dtype=torch.float64).log())
    return filter


def test_log_probabilities_equal_the_direct_formula() -> None:
    log_policies = torch.randn(4, 5, 3, dtype=torch.float64).log_softmax(-1)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    direct = (weights[:, None, None] * log_policies.exp()).sum(0).log()
    torch.testing.assert_close(mixture_log_probabilities(log_policies, weights.log()), direct)


def test_log_probabilities_neither_underflow_nor_meet_the_dead() -> None:
    log_policies = torch.tensor([[-2000.0], [-1999.0], [float("nan")]], dtype=torch.float64)
    log_weights = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).log()
    expected = -1999.0 + torch.tensor([0.5 * (1 + torch.e**-1)], dtype=torch.float64).log()
    torch.testing.assert_close(mixture_log_probabilities(log_policies, log_weights), expected)


def test_one_particle_is_its_own_mixture_bit_for_bit() -> None:
    log_policies = torch.randn(1, 50, 15).log_softmax(-1)
    mixture = mixture_log_probabilities(log_policies, torch.zeros(1, dtype=torch.float64))
    assert torch.equal(mixture, log_policies[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dead", [(1,), (0, 2), (0, 1, 3)])
@pytest.mark.parametrize("act", ["mixture", "episode"])
def test_the_dead_neither_act_nor_spoil_who_does(
    act: str, dead: tuple[int, ...], value: float
) -> None:
    """One of four, two, all but one: the decisions are those of the living alone."""
    alive = [number for number in range(4) if number not in dead]
    shares = [0.25 * (number in alive) for number in range(4)]
    filter = weighted(4, [share / sum(shares) for share in shares])
    living = ol.Ensemble.from_modules([filter.particles[number] for number in alive])
    alone = ol.AveragingParticles(living, torch.optim.SGD(living.parameters(), 0.1))
    with torch.no_grad():
        for parameter in filter.particles.parameters():
            parameter[list(dead)] = value
    policies = (
        MixturePolicy(filter, 500, 3, act=act, seed=3),
        MixturePolicy(alone, 500, 3, act=act, seed=3),
    )
    start = torch.ones(500, dtype=torch.bool)
    frames = torch.eye(6)[torch.arange(500) % 6]
    found, expected = (policy(frames, start) for policy in policies)
    assert found.log_behaviour.isfinite().all()
    if act == "episode":  # who plays is drawn by another number of particles: not the same draws
        assert set(policies[0].playing.tolist()) == set(alive)
        own = found.log_policies[policies[0].playing, torch.arange(500)]
        assert own.isfinite().all()
    else:
        assert torch.equal(found.actions, expected.actions)
        torch.testing.assert_close(found.log_behaviour, expected.log_behaviour)
        torch.testing.assert_close(found.log_policies[alive], expected.log_policies)


def test_the_episode_of_a_particle_that_dies_goes_on_with_another() -> None:
    filter = weighted(3, [0.5, 0.25, 0.25])
    policy = MixturePolicy(filter, 400, 3, act="episode", seed=0)
    frames = torch.eye(6)[1].expand(400, 6)
    start = torch.ones(400, dtype=torch.bool)
    policy(frames, start)
    playing = policy.playing.clone()
    filter.raw_log_weights.copy_(torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64).log())
    with torch.no_grad():
        filter.particles.policy.bias[0] = torch.nan
    policy.begin()
    decision = policy(frames, ~start)
    assert (playing == 0).any() and not (policy.playing == 0).any()
    assert torch.equal(policy.playing[playing != 0], playing[playing != 0])
    assert decision.log_behaviour.isfinite().all()


@pytest.mark.parametrize("act", ["mixture", "episode"])
def test_actions_come_from_the_mixture_with_the_reported_probabilities(act: str) -> None:
    filter = weighted(3, [0.7, 0.3, 0.0])
    policy = MixturePolicy(filter, 20_000, 3, act=act, seed=1)
    frames = torch.eye(6)[1].expand(20_000, 6)
    decision = policy(frames, torch.ones(20_000, dtype=torch.bool))
    log_policies = filter.particles(frames[:1])[0].log_softmax(-1)[:, 0]
    mixture = 0.7 * log_policies[0].exp() + 0.3 * log_policies[1].exp()
    shares = torch.bincount(decision.actions, minlength=3) / 20_000
    # four standard deviations of a share of 20,000 draws
    torch.testing.assert_close(shares, mixture.detach(), atol=4 * 0.5 / 20_000**0.5, rtol=0)
    chosen = decision.actions
    torch.testing.assert_close(decision.log_behaviour, mixture.log()[chosen].detach())
    torch.testing.assert_close(decision.log_policies, log_policies[:, chosen].detach())


def test_one_particle_plays_a_whole_episode() -> None:
    filter = weighted(3, [0.5, 0.25, 0.25])
    policy = MixturePolicy(filter, 4000, 3, act="episode", seed=0)
    frames, start = torch.eye(6)[1].expand(4000, 6), torch.ones(4000, dtype=torch.bool)
    policy(frames, start)
    playing = policy.playing.clone()
    shares = torch.bincount(playing, minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.25, 0.25]), atol=0.032, rtol=0)
    policy(frames, ~start)
    assert torch.equal(policy.playing, playing)
    policy(frames, torch.arange(4000) < 2000)
    assert torch.equal(policy.playing[2000:], playing[2000:])
    assert not torch.equal(policy.playing[:2000], playing[:2000])


def test_choices_do_not_depend_on_how_many_environments_there_are() -> None:
    filter = weighted(2, [0.5, 0.5])
    start = torch.ones(9, dtype=torch.bool)
    few, many = (MixturePolicy(filter, n, 3, seed=5) for n in (4, 9))
    for _ in range(5):
        frames = torch.randn(9, 6)
        assert torch.equal(few(frames[:4], start[:4]).actions, many(frames, start).actions[:4])


def test_weights_are_those_at_the_beginning_of_collection() -> None:
    filter = weighted(2, [0.5, 0.5])
    policy = MixturePolicy(filter, 1, 3)
    frames, start = torch.eye(6)[:1], torch.ones(1, dtype=torch.bool)
    filter.raw_log_weights.copy_(torch.tensor([1.0, 0.0], dtype=torch.float64).log())
    decision = policy(frames, start)
    both = mixture_log_probabilities(decision.log_policies, torch.tensor([0.5, 0.5]).log())
    torch.testing.assert_close(decision.log_behaviour, both)
    policy.begin()
    decision = policy(frames, start)
    assert torch.equal(decision.log_behaviour, decision.log_policies[0])


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="act must be 'mixture' or 'episode', got 'best'"):
        MixturePolicy(weighted(1, [1.0]), 2, 3, act="best")
    state = MixturePolicy(weighted(1, [1.0]), 2, 3).state_dict()
    with pytest.raises(ValueError, match="of 2 environments, not of 3"):
        MixturePolicy(weighted(1, [1.0]), 3, 3).load_state_dict(state)
    with pytest.raises(ValueError, match="of seed 0, not of seed 1"):
        MixturePolicy(weighted(1, [1.0]), 2, 3, seed=1).load_state_dict(state)
