"""Gymnasium's vector environments as levels: its bookkeeping, its seeds, and PPO on CartPole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from lab.tests.toys import averaging
from torch import nn

import orderless as ol
from orderless_lab.rl import PPO, ActorCritic, GymnasiumLevels, PPOSettings, play

ROUND = 8 * 128  # steps
NOTHING = np.zeros(2, dtype=np.int64)  # the actions of two copies


class Balancer(ActorCritic):
    def __init__(self) -> None:
        body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        super().__init__(body, features=64, actions=2, value=True)


def carts(copies: int = 8) -> Any:
    return gymnasium.make_vec("CartPole-v1", copies, vectorization_mode="vector_entry_point")


def make_ppo(env: Any, n: int = 1) -> PPO:
    kind = ol.GradientDescent if n == 1 else ol.WeightedParticleFilter
    particles = ol.Ensemble(Balancer, n, seed=0)
    optimizer = torch.optim.Adam(particles.parameters(), lr=1e-3, eps=1e-5)
    settings = PPOSettings(steps=128, epochs=4, minibatches=4, discount=0.99)
    return PPO(kind(particles, optimizer, max_grad_norm=0.5), env, settings)


class Guess(gymnasium.Env[Any, Any]):
    """Ten steps; action 0 earns 1. What it shows and takes is asked for."""

    def __init__(self, shows: Any = None, takes: Any = None) -> None:
        self.observation_space = shows or spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = takes or spaces.Discrete(2)

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        ended = self.steps == 10  # in both ways
        return self.observation_space.sample(), float(action == 0), ended, ended, {}


def guesses(**options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Guess(**options)] * 2)


@pytest.mark.parametrize("wrap", [SyncVectorEnv, AsyncVectorEnv])
def test_returns_and_resets_are_those_that_gymnasium_counts(wrap: Any) -> None:
    """Against its own RecordEpisodeStatistics, over episodes that end both ways."""
    options = {"context": "spawn"} if wrap is AsyncVectorEnv else {}
    makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=15)] * 3
    env = GymnasiumLevels(wrap(makers, **options), seed=4)
    plain = RecordEpisodeStatistics(SyncVectorEnv(makers))
    frames, _ = plain.reset(seed=3 * 4)
    np.testing.assert_array_equal(env.reset()[0], frames)
    generator = np.random.default_rng(0)
    ends = []
    for _ in range(80):
        actions = generator.integers(0, 2, 3)
        before = env.ended.copy()
        ours = env.step(actions)
        theirs = plain.step(actions)
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[1], theirs[1])
        np.testing.assert_array_equal(ours[4]["valid"], ~before)
        if "episode" in theirs[4]:
            ended = theirs[4]["_episode"]
            counted = theirs[4]["episode"]
            np.testing.assert_array_equal(env.ended, ended)
            for name, short in (("episode_return", "r"), ("episode_length", "l")):
                np.testing.assert_array_equal(ours[4][name][ended], counted[short][ended])
            ends += list(zip(ours[2][ended], ours[3][ended], strict=True))
    env.close()
    plain.close()
    assert {(True, False), (False, True)} <= set(ends)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, pytest.param(4, marks=pytest.mark.sweep)])
def test_ppo_learns_to_balance(n: int) -> None:
    """At random a pole stands for some 22 steps."""
    ppo = make_ppo(GymnasiumLevels(carts()), n)
    ppo.learn(ROUND)
    early = np.mean([episode.value for episode in ppo.take_episodes()])
    ppo.learn(16_384)
    late = np.mean([episode.value for episode in ppo.take_episodes()[-20:]])
    assert early < 35
    assert late > 90


def test_states_that_are_numbers_reach_the_network_as_they_are() -> None:
    """FrozenLake's 16 cells, which a network may embed; images would be scaled."""
    lake = gymnasium.make_vec("FrozenLake-v1", 8, is_slippery=False, vectorization_mode="sync")
    frames, _ = GymnasiumLevels(lake).reset()
    network = ActorCritic(nn.Embedding(16, 32), features=32, actions=4, value=True)
    logits, _ = network(torch.from_numpy(frames))
    assert frames.tolist() == [0] * 8
    assert torch.equal(logits, network.policy(network.body(torch.zeros(8, dtype=torch.int64))))


def test_levels_are_environments_with_seeds_of_their_own() -> None:
    env = GymnasiumLevels([carts(4), carts(4)], seed=3)
    first, _ = env.reset()
    again, _ = env.reset()
    assert not np.array_equal(first, again)  # goes on from the seed
    other, _ = env.switch(1)
    assert env.level == 1
    np.testing.assert_array_equal(other, first)  # the same game from the same seed
    with pytest.raises(ValueError, match="got 2"):
        env.switch(2)


def test_a_saved_run_goes_on_with_new_episodes(tmp_path: Path) -> None:
    ppo = make_ppo(GymnasiumLevels([carts(), carts(), carts()]), 2)
    ppo.switch(1)
    first = ppo.env.observations.copy()
    ppo.learn(ROUND)
    ol.save(tmp_path / "run.safetensors", ppo)
    again = make_ppo(GymnasiumLevels([carts(), carts(), carts()]), 2)
    ol.load(tmp_path / "run.safetensors", again)
    assert again.steps == ppo.steps
    assert again.env.level == 1
    assert again.env.first.all()
    assert not np.array_equal(again.env.observations, first)
    # a level not seen before starts as without a resume
    np.testing.assert_array_equal(again.env.switch(2)[0], first)
    again.learn(ROUND)


def test_what_cannot_be_played_is_refused_in_a_sentence() -> None:
    same_step = SyncVectorEnv([Guess] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    refused: list[tuple[Any, str]] = [
        (gymnasium.make("CartPole-v1"), "not a vector environment"),
        (guesses(takes=spaces.Box(0, 1, (2,))), "Discrete"),
        (guesses(takes=spaces.Discrete(3, start=1)), "Discrete"),
        (guesses(shows=spaces.Dict({"a": spaces.Discrete(2)})), "an array is needed"),
        ([guesses(), guesses(shows=spaces.Box(-1, 1, (5,), np.float32))], r"\(5,\).*\(4,\)"),
        ([guesses(), guesses(takes=spaces.Discrete(3))], r"Discrete\(3\)"),
        ([carts(2), carts(3)], r"level 1 has copies.*\(3,"),
        (same_step, "SAME_STEP"),
    ]
    for levels, message in refused:
        with pytest.raises((ValueError, TypeError), match=message):
            GymnasiumLevels(levels)
    with pytest.raises(TypeError, match="wrap it in GymnasiumLevels"):
        make_ppo(carts())


def test_an_episode_that_ends_in_both_ways_was_terminated() -> None:
    levels = GymnasiumLevels(guesses())
    levels.reset()
    for _ in range(10):
        _, _, terminated, truncated, _ = levels.step(NOTHING)
    assert terminated.all()
    assert not truncated.any()
    assert not levels.step(NOTHING)[4]["valid"].any()  # the eleventh is a reset


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, OSError])
def test_an_interrupted_run_goes_on(trouble: type[BaseException]) -> None:
    ppo = make_ppo(GymnasiumLevels(carts()))
    env = ppo.env.levels[0]  # type: ignore[attr-defined]
    plain = env.step
    calls = []

    def step(actions: Any) -> Any:
        calls.append(actions)
        if len(calls) == 5:
            raise trouble("stop")
        return plain(actions)

    env.step = step
    with pytest.raises(trouble):
        ppo.learn(ROUND)
    ppo.learn(ROUND)
    assert len(calls) >= 128


def test_episodes_after_an_evaluation_are_whole_and_their_own() -> None:
    """`play` on PPO's own environment: no episode is longer than the steps that PPO took since."""
    ppo = make_ppo(GymnasiumLevels(carts()))
    ppo.learn(ROUND)
    ppo.take_episodes()
    play(ppo.filter, ppo.env)
    before = ppo.steps
    ppo.learn(ROUND)
    assert all(episode.length <= (episode.step - before) / 8 for episode in ppo.take_episodes())


def test_networks_know_the_actions_of_the_environment() -> None:
    particles = ol.Ensemble(Balancer, 2)
    env = GymnasiumLevels(guesses(takes=spaces.Discrete(3)))
    sentence = "know 2 actions, but the environment has 3"
    with pytest.raises(ValueError, match=sentence):
        PPO(averaging(particles), env, PPOSettings(steps=8, minibatches=2)).learn(16)
    with pytest.raises(ValueError, match=sentence):
        play(averaging(particles), env)


def test_arrays_handed_out_stay_as_they_are_and_floats_are_single() -> None:
    makers = [lambda: Guess(shows=spaces.Box(-1, 1, (4,), np.float64))] * 2
    env = GymnasiumLevels(SyncVectorEnv(makers, copy=False))
    frames, _ = env.reset()
    kept = frames.copy()
    later = env.step(NOTHING)[0]
    assert frames.dtype == later.dtype == np.float32
    np.testing.assert_array_equal(frames, kept)
    assert not np.array_equal(frames, later)
