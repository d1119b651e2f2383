"""Gymnasium's vector environments as levels: its bookkeeping, its seeds, and PPO on CartPole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn

import orderless as ol
from orderless.rl import PPO, ActorCritic, GymnasiumLevels, PPOSettings


class Balancer(ActorCritic):
    def __init__(self) -> None:
        body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        super().__init__(body, features=64, actions=2, value=True)


def carts(copies: int = 8, **options: Any) -> Any:
    mode = "vector_entry_point"
    return gymnasium.make_vec("CartPole-v1", copies, vectorization_mode=mode, **options)


def make_ppo(env: GymnasiumLevels, n: int = 1, seed: int = 0) -> PPO:
    kind = ol.GradientDescent if n == 1 else ol.WeightedParticleFilter
    particles = ol.Ensemble(Balancer, n, seed=seed)
    optimizer = torch.optim.Adam(particles.parameters(), lr=1e-3, eps=1e-5)
    settings = PPOSettings(steps=128, epochs=4, minibatches=4, discount=0.99)
    return PPO(kind(particles, optimizer, max_grad_norm=0.5), env, settings, seed=seed)


@pytest.mark.parametrize("wrap", [SyncVectorEnv, AsyncVectorEnv])
def test_returns_and_resets_are_those_that_gymnasium_counts(wrap: Any) -> None:
    """Against its own RecordEpisodeStatistics, over episodes that end both ways."""
    options = {"context": "spawn"} if wrap is AsyncVectorEnv else {}
    makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=15)] * 3
    env = GymnasiumLevels(wrap(makers, **options), seed=4)
    plain = RecordEpisodeStatistics(SyncVectorEnv(makers))
    frames, _ = plain.reset(seed=4)
    np.testing.assert_array_equal(env.reset()[0], frames)
    generator, ends = np.random.default_rng(0), []
    for _ in range(80):
        actions = generator.integers(0, 2, 3)
        before = env.ended.copy()
        found, (frames, rewards, *_, info) = env.step(actions), plain.step(actions)
        np.testing.assert_array_equal(found[0], frames)
        np.testing.assert_array_equal(found[1], rewards)
        np.testing.assert_array_equal(found[4]["valid"], ~before)
        if "episode" in info:
            ended = info["_episode"]
            np.testing.assert_array_equal(env.ended, ended)
            np.testing.assert_array_equal(
                found[4]["episode_return"][ended], info["episode"]["r"][ended]
            )
            np.testing.assert_array_equal(
                found[4]["episode_length"][ended], info["episode"]["l"][ended]
            )
            ends += list(zip(found[2][ended], found[3][ended], strict=True))
    env.close()
    plain.close()
    assert (True, False) in ends and (False, True) in ends


@pytest.mark.parametrize("n", [1, 4])
def test_ppo_learns_to_balance(n: int) -> None:
    """At random a pole stands for some 22 steps."""
    ppo = make_ppo(GymnasiumLevels(carts()), n)
    ppo.learn(8 * 128)
    early = np.mean([episode.value for episode in ppo.take_episodes()])
    ppo.learn(16_384)
    late = np.mean([episode.value for episode in ppo.take_episodes()[-20:]])
    assert early < 35 and late > 90


def test_levels_are_environments_with_seeds_of_their_own() -> None:
    env = GymnasiumLevels([carts(4), carts(4)], seed=3)
    first, _ = env.reset()
    assert env.level == 0 and first.dtype == np.float32
    again, _ = env.reset()
    assert not np.array_equal(first, again)  # goes on from the seed
    other, _ = env.switch(1)
    assert env.level == 1
    np.testing.assert_array_equal(other, first)  # the same game from the same seed
    env.send(np.zeros(4, dtype=np.int64))
    env.switch(0)  # in the middle of a step
    env.step(np.zeros(4, dtype=np.int64))
    with pytest.raises(ValueError, match=r"level must lie in 0\.\.1, got 2"):
        env.switch(2)


def test_a_saved_run_goes_on_with_new_episodes(tmp_path: Path) -> None:
    ppo = make_ppo(GymnasiumLevels([carts(), carts()]), 2)
    ppo.switch(1)
    ppo.learn(8 * 128)
    ol.save(tmp_path / "run.safetensors", ppo)
    again = make_ppo(GymnasiumLevels([carts(), carts()]), 2)
    ol.load(tmp_path / "run.safetensors", again)
    assert again.steps == ppo.steps and again.env.level == 1 and again.env.first.all()
    assert not np.array_equal(again.env.observations, GymnasiumLevels(carts()).reset()[0])
    again.learn(8 * 128)


def test_what_cannot_be_played_is_refused_in_a_sentence() -> None:
    with pytest.raises(TypeError, match="not a vector environment: make one with gymnasium.make_v"):
        GymnasiumLevels(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match="needs at least one"):
        GymnasiumLevels([])
    with pytest.raises(ValueError, match="level 0 has actions Box.*needs Discrete"):
        GymnasiumLevels(gymnasium.make_vec("Pendulum-v1", 2))
    with pytest.raises(ValueError, match=r"level 1 has .* \(3, .*\), but level 0 has \(2, "):
        GymnasiumLevels([carts(2), carts(3)])
    makers = [lambda: gymnasium.make("CartPole-v1")] * 2
    with pytest.raises(ValueError, match="level 0 resets by SAME_STEP"):
        GymnasiumLevels(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP))
