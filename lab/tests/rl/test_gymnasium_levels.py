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
from torch import nn

import orderless as ol
from orderless_lab.rl import PPO, ActorCritic, GymnasiumLevels, PPOSettings, play


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
    frames, _ = plain.reset(seed=3 * 4)
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


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, pytest.param(4, marks=pytest.mark.sweep)])
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
    with pytest.raises(ValueError, match=r"level must lie in 0\.\.1, got 2"):
        env.switch(2)


@pytest.mark.slow
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
        return self.observation_space.sample(), float(action == 0), self.steps == 10, False, {}


def guesses(copies: int = 2, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Guess(**options)] * copies)


def test_what_cannot_be_played_is_refused_in_a_sentence() -> None:
    with pytest.raises(TypeError, match="not a vector environment: make one with gymnasium.make_v"):
        GymnasiumLevels(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match="needs at least one"):
        GymnasiumLevels([])
    for actions in (spaces.Box(0, 1, (2,)), spaces.MultiBinary(3), spaces.Discrete(3, start=1)):
        with pytest.raises(ValueError, match="level 0 has actions .*needs Discrete"):
            GymnasiumLevels(guesses(takes=actions))
    with pytest.raises(ValueError, match="level 0 has observations Dict.*an array is needed"):
        GymnasiumLevels(guesses(shows=spaces.Dict({"a": spaces.Discrete(2)})))
    wide = spaces.Box(-1, 1, (5,), np.float32)
    for other in (guesses(shows=wide), guesses(takes=spaces.Discrete(3))):
        with pytest.raises(ValueError, match="level 1 has .*, but level 0 has "):
            GymnasiumLevels([guesses(), other])
    with pytest.raises(ValueError, match="level 1 has 3 copies.*but level 0 has 2 copies"):
        GymnasiumLevels([carts(2), carts(3)])
    byte = spaces.Box(0, 255, (4,), np.uint8)
    with pytest.raises(ValueError, match="observations uint8 .*, but level 0 has .* float32"):
        GymnasiumLevels([guesses(), guesses(shows=byte)])
    with pytest.raises(ValueError, match="level 1 is also an earlier level"):
        GymnasiumLevels([twice := guesses(), twice])
    makers = [lambda: gymnasium.make("CartPole-v1")] * 2
    same = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match="level 0 resets by .*SAME_STEP"):
        GymnasiumLevels(same)
    same.metadata = {"autoreset_mode": "SameStep"}
    with pytest.raises(ValueError, match="level 0 resets by SameStep"):
        GymnasiumLevels(same)
    for seed in (None, 1.5, "a"):
        with pytest.raises(TypeError, match="seed must be a whole number"):
            GymnasiumLevels(carts(2), seed=seed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed must be at least 0"):
        GymnasiumLevels(carts(2), seed=-1)
    with pytest.raises(TypeError, match="got CartPoleVectorEnv: wrap it in GymnasiumLevels"):
        make_ppo(carts())
    with pytest.raises(TypeError, match="level must be a whole number, got '1'"):
        GymnasiumLevels(carts(2)).switch("1")  # type: ignore[arg-type]


def test_flags_and_rewards_of_any_kind_and_none_of_another_shape() -> None:
    env = guesses()
    levels, plain = GymnasiumLevels(env), env.step
    env.step = lambda actions: tuple(  # type: ignore[method-assign]
        part.astype(np.uint8) if place in (2, 3) else part
        for place, part in enumerate(plain(actions))
    )
    levels.reset()
    for _ in range(11):
        info = levels.step(np.zeros(2, dtype=np.int64))[4]
    assert info["valid"].dtype == bool and not info["valid"].any()  # the eleventh is a reset
    env.step = lambda actions: (  # type: ignore[method-assign]
        plain(actions)[0], np.zeros((2, 1)), *plain(actions)[2:]
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"gave rewards of shape \(2, 1\), but there are 2 copies"):
        levels.step(np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, OSError])
def test_an_interrupted_run_goes_on(trouble: type[BaseException]) -> None:
    ppo = make_ppo(GymnasiumLevels(carts()))
    env, calls = ppo.env.levels[0], []  # type: ignore[attr-defined]
    plain = env.step

    def step(actions: Any) -> Any:
        calls.append(actions)
        if len(calls) == 5:
            raise trouble("stop")
        return plain(actions)

    env.step = step
    with pytest.raises(trouble):
        ppo.learn(8 * 128)
    if trouble is OSError:
        with pytest.raises(RuntimeError, match="the environment has not started: call reset"):
            ppo.learn(8 * 128)
        ppo.env.reset()
    ppo.learn(8 * 128)
    assert len(calls) >= 128


def test_episodes_after_an_evaluation_are_whole_and_their_own() -> None:
    """`play` on PPO's own environment: no episode is longer than the steps that PPO took since."""
    ppo = make_ppo(GymnasiumLevels(carts()))
    ppo.learn(8 * 128)
    ppo.take_episodes()
    play(ppo.filter, ppo.env)
    before = ppo.steps
    ppo.learn(8 * 128)
    assert all(episode.length <= (episode.step - before) / 8 for episode in ppo.take_episodes())


@pytest.mark.parametrize("known", [1, 3])
def test_networks_know_the_actions_of_the_environment(known: int) -> None:
    class Other(ActorCritic):
        def __init__(self) -> None:
            super().__init__(nn.Linear(4, 8), features=8, actions=known + 1, value=True)

    particles = ol.Ensemble(Other, 2)
    filter = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), 0.1))
    env = GymnasiumLevels(guesses(takes=spaces.Discrete(3)))
    sentence = f"the networks know {known + 1} actions, but the environment has 3"
    with pytest.raises(ValueError, match=sentence):
        PPO(filter, env, PPOSettings(steps=8, minibatches=2)).learn(16)
    with pytest.raises(ValueError, match=sentence):
        play(filter, env)


@pytest.mark.slow
def test_states_that_are_numbers_reach_the_network_as_they_are() -> None:
    """FrozenLake's 16 cells, embedded: a network that sees cell / 255 learns nothing."""

    class Cells(ActorCritic):
        def __init__(self) -> None:
            super().__init__(nn.Embedding(16, 32), features=32, actions=4, value=True)

    lake = gymnasium.make_vec("FrozenLake-v1", 8, is_slippery=False, vectorization_mode="sync")
    particles = ol.Ensemble(Cells, 1, seed=0)
    filter = ol.GradientDescent(particles, torch.optim.Adam(particles.parameters(), lr=1e-2))
    ppo = PPO(filter, GymnasiumLevels(lake), PPOSettings(steps=64, minibatches=4, discount=0.95))
    ppo.learn(12_288)
    assert np.mean([episode.value for episode in ppo.take_episodes()[-50:]]) > 0.8


def test_a_level_not_seen_before_starts_as_without_a_resume() -> None:
    env, again = (GymnasiumLevels([carts(4), carts(4)], seed=2) for _ in range(2))
    env.reset()
    again.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(env.switch(1)[0], again.switch(1)[0])
    with pytest.raises(ValueError, match="this state is of 2 levels, but there are 1"):
        GymnasiumLevels(carts(4)).load_state_dict(env.state_dict())


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        ({"level": 2}, ValueError, r"level must lie in 0\.\.1, got 2"),
        ({"level": "1"}, TypeError, "level must be a whole number"),
        ({"seeded": [0, None]}, TypeError, "must be a whole number, got None"),
        ({"resumes": 0.5}, TypeError, "must be a whole number, got 0.5"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(
    part: dict[str, Any], error: type[Exception], message: str
) -> None:
    env = GymnasiumLevels([carts(), carts()])
    env.reset()
    before = env.state_dict()
    frames = env.observations
    with pytest.raises(error, match=message):
        env.load_state_dict({**before, **part})
    assert env.state_dict() == before
    assert env.observations is frames  # and no episode began


@pytest.mark.slow
def test_a_step_under_way_is_ended_before_another_level_begins() -> None:
    """Otherwise Gymnasium would refuse the next step there."""
    makers = [lambda: gymnasium.make("CartPole-v1")] * 2
    levels = [AsyncVectorEnv(makers, context="spawn") for _ in range(2)]
    env = GymnasiumLevels(levels)
    env.reset()
    actions = np.zeros(2, dtype=np.int64)
    env.send(actions)
    assert env.under_way
    env.switch(1)
    env.step(actions)
    env.switch(0)
    env.step(actions)
    env.close()
    assert all(level.closed for level in levels)


def test_arrays_handed_out_stay_as_they_are_and_floats_are_single() -> None:
    makers = [lambda: Guess(shows=spaces.Box(-1, 1, (4,), np.float64))] * 2
    env = GymnasiumLevels(SyncVectorEnv(makers, copy=False))
    frames, _ = env.reset()
    kept = frames.copy()
    later = env.step(np.zeros(2, dtype=np.int64))[0]
    assert frames.dtype == later.dtype == np.float32
    np.testing.assert_array_equal(frames, kept)
    assert not np.array_equal(frames, later)


def test_a_resumed_level_starts_from_another_seed() -> None:
    env, again = (GymnasiumLevels(carts(4), seed=2) for _ in range(2))
    first, _ = env.reset()
    again.load_state_dict(env.state_dict())
    assert not np.array_equal(again.observations, first)
    same = GymnasiumLevels(carts(4), seed=2)
    same.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(same.observations, again.observations)


def test_an_episode_that_ends_both_ways_was_terminated() -> None:
    class Both(Guess):
        def step(self, action: Any) -> Any:
            frames, reward, ended, _, info = super().step(action)
            return frames, reward, ended, ended, info

    env = GymnasiumLevels(SyncVectorEnv([Both] * 2))
    env.reset()
    for _ in range(10):
        _, _, terminated, truncated, _ = env.step(np.zeros(2, dtype=np.int64))
    assert terminated.all() and not truncated.any()
