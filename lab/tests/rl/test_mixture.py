"""Who acts, and with what probability."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lab.tests.toys import averaging, set_weights, weighted_walkers

import orderless as ol
from orderless_lab.rl import MixturePolicy, mixture_log_probabilities

FRAMES = np.eye(6, dtype=np.float32)


def starts(count: int) -> np.ndarray:
    return np.ones(count, dtype=bool)


def test_log_probabilities_neither_underflow_nor_meet_the_dead() -> None:
    log_policies = torch.tensor([[-2000.0], [-1999.0], [float("nan")]], dtype=torch.float64)
    log_weights = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).log()
    expected = -1999.0 + torch.tensor([0.5 * (1 + torch.e**-1)], dtype=torch.float64).log()
    torch.testing.assert_close(mixture_log_probabilities(log_policies, log_weights), expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dead", [(1,), (0, 1, 3)])
@pytest.mark.parametrize("act", ["mixture", "episode"])
def test_the_dead_neither_act_nor_spoil_who_does(
    act: str, dead: tuple[int, ...], value: float
) -> None:
    """One of four, or all but one: the decisions are those of the living alone."""
    alive = [number for number in range(4) if number not in dead]
    filter = weighted_walkers([(number in alive) / len(alive) for number in range(4)])
    alone = averaging(ol.Ensemble.from_modules([filter.particles[number] for number in alive]))
    with torch.no_grad():
        for parameter in filter.particles.parameters():
            parameter[list(dead)] = value
    everyone = MixturePolicy(filter, 500, 3, act=act, seed=3)
    frames = FRAMES[np.arange(500) % 6]
    ours = everyone(frames, starts(500))
    theirs = MixturePolicy(alone, 500, 3, act=act, seed=3)(frames, starts(500))
    assert ours.log_behaviour.isfinite().all()
    if act == "episode":  # who plays is drawn by another number of particles: not the same draws
        assert set(everyone.playing.tolist()) == set(alive)
    else:
        assert torch.equal(ours.actions, theirs.actions)
        torch.testing.assert_close(ours.log_behaviour, theirs.log_behaviour)
        torch.testing.assert_close(ours.log_policies[alive], theirs.log_policies)


@pytest.mark.parametrize("act", ["mixture", "episode"])
def test_actions_come_from_the_mixture_with_the_reported_probabilities(act: str) -> None:
    filter = weighted_walkers([0.7, 0.3, 0.0])
    policy = MixturePolicy(filter, 20_000, 3, act=act, seed=1)
    decision = policy(FRAMES[np.ones(20_000, dtype=int)], starts(20_000))
    outputs = filter.particles(torch.from_numpy(FRAMES[1:2]))
    log_policies = outputs[0].log_softmax(-1)[:, 0].detach()
    mixture = 0.7 * log_policies[0].exp() + 0.3 * log_policies[1].exp()
    shares = torch.bincount(decision.actions, minlength=3) / 20_000
    # four standard deviations of a share of 20,000 draws
    torch.testing.assert_close(shares, mixture, atol=4 * 0.5 / 20_000**0.5, rtol=0)
    torch.testing.assert_close(decision.log_behaviour, mixture.log()[decision.actions])
    torch.testing.assert_close(decision.log_policies, log_policies[:, decision.actions])


def test_one_particle_plays_a_whole_episode_unless_it_dies() -> None:
    filter = weighted_walkers([0.5, 0.25, 0.25])
    policy = MixturePolicy(filter, 4000, 3, act="episode", seed=0)
    frames = FRAMES[np.ones(4000, dtype=int)]
    policy(frames, starts(4000))
    playing = policy.playing.clone()
    shares = torch.bincount(playing, minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.25, 0.25]), atol=0.032, rtol=0)
    policy(frames, ~starts(4000))
    assert torch.equal(policy.playing, playing)
    policy(frames, np.arange(4000) < 2000)
    assert torch.equal(policy.playing[2000:], playing[2000:])
    assert not torch.equal(policy.playing[:2000], playing[:2000])
    playing = policy.playing.clone()
    set_weights(filter, [0.0, 0.5, 0.5])
    policy.begin()
    policy(frames, ~starts(4000))
    assert not (policy.playing == 0).any()
    assert torch.equal(policy.playing[playing != 0], playing[playing != 0])


def test_choices_do_not_depend_on_how_many_environments_there_are() -> None:
    filter = weighted_walkers([0.5, 0.5])
    few, many = (MixturePolicy(filter, n, 3, seed=5) for n in (4, 9))
    frames = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    for _ in range(5):
        actions = many(frames, starts(9)).actions
        assert torch.equal(few(frames[:4], starts(4)).actions, actions[:4])


def test_weights_are_those_at_the_beginning_of_collection() -> None:
    filter = weighted_walkers([0.5, 0.5])
    policy = MixturePolicy(filter, 1, 3)
    set_weights(filter, [1.0, 0.0])
    decision = policy(FRAMES[:1], starts(1))
    both = mixture_log_probabilities(decision.log_policies, torch.tensor([0.5, 0.5]).log())
    torch.testing.assert_close(decision.log_behaviour, both)
    policy.begin()
    decision = policy(FRAMES[:1], starts(1))
    assert torch.equal(decision.log_behaviour, decision.log_policies[0])


def test_a_state_of_another_seed_is_refused() -> None:
    state = MixturePolicy(weighted_walkers([1.0]), 2, 3).state_dict()
    with pytest.raises(ValueError, match="this state is of seed 0"):
        MixturePolicy(weighted_walkers([1.0]), 2, 3, seed=1).load_state_dict(state)
