"""ProcGen itself: levels that repeat, resets that are no experience, pools that go away."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from orderless_lab.rl import GAMES, ProcgenLevels, normalized_return
from orderless_lab.rl.runtime import load_envpool


@pytest.fixture(scope="module")
def starpilot() -> Iterator[ProcgenLevels]:
    env = ProcgenLevels("starpilot", 4, level=3, threads=2)
    yield env
    env.close()


def actions_of(steps: int, n_envs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 15, (steps, n_envs))


def played(env: ProcgenLevels, actions: np.ndarray) -> list[np.ndarray]:
    """Frames, rewards and ends under these actions, from a new start."""
    first, _ = env.reset()
    steps = [env.step(chosen) for chosen in actions]
    parts = [np.stack([step[part] for step in steps]) for part in range(4)]
    return [first, *parts]


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(left, right, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_a_level_repeats_under_equal_actions(game: str) -> None:
    actions = actions_of(150, 4)
    actions[:, 3] = actions[:, 0]
    runs = []
    for seed in (0, 1):
        env = ProcgenLevels(game, 4, level=7, seed=seed, threads=1 + seed)
        runs.append(played(env, actions))
        env.close()
    assert same(*runs)
    _, frames, rewards, terminated, _ = runs[0]
    assert frames.shape == (150, 4, 3, 64, 64)
    assert frames.dtype == np.uint8
    assert np.array_equal(frames[:, 0], frames[:, 3])
    assert terminated.any()
    assert rewards.any()


@pytest.mark.slow
def test_the_step_after_an_end_is_a_reset_and_is_masked(starpilot: ProcgenLevels) -> None:
    start = starpilot.reset()[0].copy()
    total = np.zeros(4)
    ends = 0
    ended = np.zeros(4, dtype=bool)
    for chosen in actions_of(300, 4, seed=1):
        frames, rewards, terminated, truncated, info = starpilot.step(chosen)
        assert np.array_equal(info["valid"], ~ended)
        assert np.array_equal(starpilot.first, ended)
        assert np.array_equal(frames[ended], start[ended])
        assert not rewards[ended].any()
        assert not (terminated | truncated)[ended].any()
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
    for _ in range(1000):  # walls on this side: action 5 survives
        assert not env.ended.any()
        _, _, terminated, truncated, info = env.step([5, 5])
    assert truncated.all()
    assert not terminated.any()
    assert info["episode_length"].tolist() == [1000, 1000]
    env.close()


@pytest.mark.slow
def test_switching_levels_changes_the_level_and_leaks_nothing(starpilot: ProcgenLevels) -> None:
    actions = actions_of(20, 4)
    threads = set()
    before = played(starpilot, actions)
    for level in (8, 9, 10, 11):
        frames, info = starpilot.switch(level)
        assert starpilot.level == level
        assert info["valid"].all()
        assert not np.array_equal(frames, before[0])
        threads.add(len(os.listdir("/proc/self/task")))
    assert len(threads) == 1
    starpilot.switch(3)
    assert same(before, played(starpilot, actions))
    starpilot.close()
    assert same(before, played(starpilot, actions))


@pytest.mark.slow
def test_an_interrupted_step_is_forgotten(
    starpilot: ProcgenLevels, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = actions_of(20, 4)
    before = played(starpilot, actions)

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(pool, name)

        def recv(self) -> Any:
            raise KeyboardInterrupt

    pool = starpilot._pool
    with monkeypatch.context() as patch:
        patch.setattr(starpilot, "_pool", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            starpilot.step(actions[0])
    with pytest.raises(RuntimeError, match="reset"):
        starpilot.step(actions[0])
    assert same(before, played(starpilot, actions))


@pytest.mark.slow
def test_a_saved_environment_goes_on_where_it_was(starpilot: ProcgenLevels) -> None:
    starpilot.switch(3)
    played(starpilot, actions_of(120, 4, seed=2))
    other = ProcgenLevels("starpilot", 4, level=0)
    other.load_state_dict(starpilot.state_dict())
    assert other.level == 3
    for name in ("observations", "first", "ended", "returns", "lengths"):
        assert np.array_equal(getattr(other, name), getattr(starpilot, name)), name
    for chosen in actions_of(60, 4, seed=3):
        assert same(list(starpilot.step(chosen)[:4]), list(other.step(chosen)[:4]))
    other.close()
    with pytest.raises(ValueError, match="this state is of .*fruitbot"):
        starpilot.load_state_dict({**starpilot.state_dict(), "game": "fruitbot"})


@pytest.mark.slow
def test_many_levels_come_from_the_seed_and_a_resumed_run_sees_new_ones() -> None:
    envs = [ProcgenLevels("fruitbot", 4, num_levels=200, seed=seed) for seed in (0, 0, 1)]
    first = [env.reset()[0] for env in envs]
    assert np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])
    envs[0].load_state_dict(envs[0].state_dict())
    assert envs[0].first.all()
    assert not np.array_equal(envs[0].observations, first[0])
    for env in envs:
        env.close()


def test_normalized_returns() -> None:
    assert normalized_return("starpilot", [1.5, 35.0]).tolist() == [0.0, 1.0]
    assert normalized_return("fruitbot", [-0.5, 27.2]).tolist() == [0.0, 1.0]
    assert normalized_return("dodgeball", 10.25) == 0.5


@pytest.mark.slow
def test_bad_input_is_named(starpilot: ProcgenLevels) -> None:
    with pytest.raises(RuntimeError, match="reset"):
        ProcgenLevels("starpilot", 1).step([0])
    starpilot.reset()
    for actions in ([0, 0, 15, 0], [0, 0, -1, 0], [0, 0], [0.5] * 4):
        with pytest.raises(ValueError, match="actions must"):
            starpilot.step(actions)
    with pytest.raises(ValueError, match="level must lie in 0..2147483646, got -1"):
        starpilot.switch(-1)
    options: list[dict[str, Any]] = [{"level": 2**31}, {"num_levels": 0}, {"game": "coinrun"}]
    for changes in options:
        with pytest.raises(ValueError, match=f"{next(iter(changes))} must"):
            ProcgenLevels(**{"game": "starpilot", "n_envs": 1, **changes})


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
                refused += "spawn" in str(error) or "reset" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(*args: object, **kwargs: object) -> None:
        raise OSError("libGL.so.1: cannot open shared object file: No such file or directory")

    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", no_library)
        with pytest.raises(ImportError, match="libgl1"):
            load_envpool()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match="procgen"):
            load_envpool()
