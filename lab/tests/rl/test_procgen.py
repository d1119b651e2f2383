"""ProcGen itself: levels that repeat, resets that are no experience, pools that go away."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import orderless as ol
from orderless_lab.rl import (
    GAMES,
    PPO,
    Compact,
    PPOSettings,
    ProcgenLevels,
    normalized_return,
    play,
)
from orderless_lab.rl.runtime import load_envpool


@pytest.fixture(scope="module")
def starpilot() -> Iterator[ProcgenLevels]:
    env = ProcgenLevels("starpilot", 4, level=3, threads=2)
    yield env
    env.close()


def actions_of(steps: int, n_envs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 15, (steps, n_envs))


def played(env: ProcgenLevels, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Everything that happens under these actions, from a new start."""
    first, _ = env.reset()
    record: dict[str, list[Any]] = {name: [] for name in ("frames", "rewards", "ended", "valid")}
    record["frames"].append(first)
    for chosen in actions:
        frames, rewards, terminated, truncated, info = env.step(chosen)
        for name, row in zip(
            record, (frames, rewards, terminated | truncated, info["valid"]), strict=True
        ):
            record[name].append(row)
    return {name: np.stack(rows) for name, rows in record.items()}


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in left)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_a_level_repeats_under_equal_actions(game: str) -> None:
    actions = actions_of(150, 4)
    actions[:, 3] = actions[:, 0]
    runs = [
        played(ProcgenLevels(game, 4, level=7, seed=seed, threads=1 + seed), actions)
        for seed in (0, 1)
    ]
    assert same(*runs)
    assert runs[0]["frames"].shape == (151, 4, 3, 64, 64)
    assert runs[0]["frames"].dtype == np.uint8
    assert np.array_equal(runs[0]["frames"][:, 0], runs[0]["frames"][:, 3])
    assert runs[0]["ended"].any() and runs[0]["rewards"].any()


@pytest.mark.slow
def test_the_step_after_an_end_is_a_reset_and_is_masked(starpilot: ProcgenLevels) -> None:
    start, _ = starpilot.reset()
    start, total, ends = start.copy(), np.zeros(4), 0
    ended = np.zeros(4, dtype=bool)
    for chosen in actions_of(300, 4, seed=1):
        frames, rewards, terminated, truncated, info = starpilot.step(chosen)
        assert np.array_equal(info["valid"], ~ended)
        assert np.array_equal(starpilot.first, ended)
        assert np.array_equal(frames[ended], start[ended])
        assert not rewards[ended].any() and not (terminated | truncated)[ended].any()
        total = np.where(ended, 0.0, total + rewards)
        ended = terminated | truncated
        assert np.array_equal(starpilot.ended, ended)
        assert np.array_equal(info["episode_return"][ended], total[ended])
        assert np.isnan(info["episode_return"][~ended]).all()
        ends += int(ended.sum())
    assert ends > 4


@pytest.mark.slow
def test_the_limit_of_an_episode_truncates_it() -> None:
    env = ProcgenLevels("dodgeball", 2, level=0)
    env.reset()
    for _ in range(999):  # walls on this side: action 5 survives
        _, _, terminated, truncated, _ = env.step([5, 5])
        assert not (terminated | truncated).any()
    _, _, terminated, truncated, info = env.step([5, 5])
    assert truncated.all() and not terminated.any()
    assert info["episode_length"].tolist() == [1000, 1000]


@pytest.mark.slow
def test_switching_levels_changes_the_level_and_leaks_nothing(starpilot: ProcgenLevels) -> None:
    actions, threads = actions_of(20, 4), []
    before = played(starpilot, actions)
    starpilot.send(actions[0])  # a step under way is no obstacle
    for level in (8, 9, 10, 11):
        frames, info = starpilot.switch(level)
        assert starpilot.level == level and info["valid"].all()
        assert not np.array_equal(frames, before["frames"][0])
        threads.append(len(os.listdir("/proc/self/task")))
    assert len(set(threads)) == 1
    starpilot.switch(3)
    assert same(before, played(starpilot, actions))
    starpilot.close()
    assert same(before, played(starpilot, actions))


@pytest.mark.slow
def test_a_saved_environment_goes_on_where_it_was(starpilot: ProcgenLevels) -> None:
    before, after = actions_of(120, 4, seed=2), actions_of(60, 4, seed=3)
    played(starpilot, before)
    state = starpilot.state_dict()
    other = ProcgenLevels("starpilot", 4, level=0)
    other.load_state_dict(state)
    assert other.level == 3
    for name in ("observations", "first", "ended", "returns", "lengths"):
        assert np.array_equal(getattr(other, name), getattr(starpilot, name)), name
    for chosen in after:
        for ours, theirs in zip(starpilot.step(chosen)[:4], other.step(chosen)[:4], strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.slow
def test_many_levels_come_from_the_seed_and_a_resumed_run_sees_new_ones() -> None:
    first = [ProcgenLevels("fruitbot", 4, num_levels=200, seed=s).reset()[0] for s in (0, 0, 1)]
    assert np.array_equal(first[0], first[1]) and not np.array_equal(first[0], first[2])
    env = ProcgenLevels("fruitbot", 4, num_levels=200)
    env.reset()
    env.load_state_dict(env.state_dict())
    assert env.first.all() and not np.array_equal(env.observations, first[0])


def test_normalized_returns() -> None:
    assert normalized_return("starpilot", [1.5, 35.0]).tolist() == [0.0, 1.0]
    assert normalized_return("fruitbot", [-0.5, 27.2]).tolist() == [0.0, 1.0]
    assert normalized_return("dodgeball", 10.25) == 0.5


@pytest.mark.slow
def test_bad_input_is_named(starpilot: ProcgenLevels) -> None:
    starpilot.reset()
    for actions, message in (
        ([0, 0, 15, 0], r"actions must lie in 0..14, got 15"),
        ([0, 0, -1, 0], r"actions must lie in 0..14, got -1"),
        ([0, 0], r"actions must have shape \(4,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            starpilot.step(actions)
    with pytest.raises(TypeError, match="whole numbers, got float64"):
        starpilot.step([0.5] * 4)
    with pytest.raises(RuntimeError, match="call send"):
        starpilot.recv()
    with pytest.raises(ValueError, match=r"level must lie in 0..2147483646, got -1"):
        starpilot.switch(-1)
    with pytest.raises(ValueError, match="level must lie in"):
        ProcgenLevels("starpilot", 1, level=2**31)
    with pytest.raises(ValueError, match="game must be one of starpilot, .* got 'coinrun'"):
        ProcgenLevels("coinrun", 1)
    with pytest.raises(ValueError, match="num_levels must lie in 1..2147483647, got 0"):
        ProcgenLevels("starpilot", 1, num_levels=0)
    with pytest.raises(ValueError, match="n_envs must be at least 1, got 0"):
        ProcgenLevels("starpilot", 0)
    with pytest.raises(RuntimeError, match=r"call reset\(\) before the first step"):
        ProcgenLevels("starpilot", 1).step([0])
    state = {**starpilot.state_dict(), "game": "fruitbot"}
    with pytest.raises(ValueError, match="its game is 'fruitbot', here it is 'starpilot'"):
        starpilot.load_state_dict(state)
    state = {**starpilot.state_dict(), "level": 5, "lengths": torch.full((4,), 7)}
    with pytest.raises(ValueError, match="does not hold the actions of 4 episodes"):
        starpilot.load_state_dict(state)
    assert starpilot.level == 3


def test_a_forked_child_is_told_not_to_step(starpilot: ProcgenLevels) -> None:
    starpilot.reset()
    child = os.fork()
    if child == 0:  # no assertion may escape into a second pytest
        refused = 0
        for attempt in (
            lambda: starpilot.step([0] * 4),
            starpilot.reset,
            lambda: starpilot.switch(1),
        ):
            try:
                attempt()
            except RuntimeError as error:
                refused += "spawn" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(*args: object, **kwargs: object) -> None:
        raise OSError("libGL.so.1: cannot open shared object file: No such file or directory")

    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", no_library)
        with pytest.raises(ImportError, match="packages libgl1 and libglib2.0-0"):
            load_envpool()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match=r"pip install 'orderless\[procgen\]'"):
            load_envpool()


@pytest.mark.slow
def test_ppo_plays_procgen_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    def make() -> PPO:
        particles = ol.Ensemble(Compact, 3, seed=0)
        optimizer = torch.optim.Adam(particles.parameters(), lr=5e-4)
        filter = ol.WeightedParticleFilter(particles, optimizer, max_grad_norm=0.5)
        env = ProcgenLevels("starpilot", 8, threads=2)
        return PPO(filter, env, PPOSettings(steps=64, epochs=1, minibatches=2))

    whole = make()
    whole.learn(8 * 64)
    whole.switch(1)
    whole.learn(8 * 64)
    assert {episode.level for episode in whole.episodes} == {0, 1}
    ol.save(tmp_path / "run.safetensors", whole)
    resumed = ol.load(tmp_path / "run.safetensors", into=make())
    infos = [ppo.learn(8 * 64) for ppo in (whole, resumed)]
    assert resumed.env.level == 1 and whole.episodes == resumed.episodes
    assert torch.equal(infos[0].log_weights, infos[1].log_weights)
    for ours, theirs in zip(
        whole.particles.parameters(), resumed.particles.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_particles_play_whole_episodes_of_procgen() -> None:
    particles = ol.Ensemble(Compact, 2, seed=0)
    filter = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), 0.1))
    env = ProcgenLevels("fruitbot", 4, threads=2)
    for combine in ("accuracy", "probs"):
        score = play(filter, env, combine=combine)
        raw = play(filter, env, combine=combine, normalize=False)
        assert score.mean == pytest.approx((raw.mean + 0.5) / 27.7)
