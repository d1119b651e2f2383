"""Experts: their files, what is measured of them, and what they leave to be cloned."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.toys import assert_same_networks, tiny_expert

import orderless as ol
from orderless_lab.rl import Compact, MixturePolicy, PPOSettings, ProcgenLevels
from orderless_lab.rl.experts import (
    FOLDER,
    Expert,
    ExpertTraining,
    load_expert,
    mean_return,
    policy_of,
    random_policy,
    save_expert,
)
from orderless_lab.rl.games import GAMES, parse_levels
from orderless_lab.rl.settings import rollouts_for
from orderless_lab.rl.tasks import ClonedTasks
from orderless_lab.rl.transitions import collect, read_transitions, transitions_path

ROOT = Path(__file__).parents[3]


def make_training(**changes: int) -> ExpertTraining:
    options: dict[str, Any] = {"levels": 3, "n_envs": 4, "seed": 5, **changes}
    settings = PPOSettings(steps=16, minibatches=2)
    return ExpertTraining("starpilot", network="compact", settings=settings, **options)


@pytest.mark.slow
def test_a_training_goes_on_from_its_state_and_becomes_a_file(tmp_path: Path) -> None:
    training = make_training()
    told: list[int] = []
    training.learn(2 * 64, lambda: told.append(training.steps))
    assert told == [64, 128]
    again = make_training()
    again.load_state_dict(training.state_dict())
    assert_same_networks(training.ppo.particles, again.ppo.particles)
    again.learn(3 * 64)
    expert = again.expert(episodes=1)
    save_expert(tmp_path / "starpilot.safetensors", expert)
    loaded = load_expert("starpilot", tmp_path)
    assert loaded.facts == expert.facts
    assert loaded.digest == expert.digest
    assert loaded.facts["steps"] == 192
    trained = again.ppo.particles[0].state_dict()
    for name, tensor in loaded.network.state_dict().items():
        assert torch.equal(tensor, trained[name].bfloat16().float())
    for changes in ({"levels": 4}, {"n_envs": 8}):
        with pytest.raises(ValueError, match="this training has"):
            make_training(**changes).load_state_dict(training.state_dict())


@pytest.mark.parametrize(("copies", "steps"), [(1, 256), (64, 256), (100, 160), (5000, 8)])
def test_more_copies_make_shorter_rollouts(copies: int, steps: int) -> None:
    """ProcGen's 64 x 256 transitions or a little less, in minibatches of equal size."""
    settings = rollouts_for(copies)
    assert settings == PPOSettings(steps=steps)
    assert steps * copies % settings.minibatches == 0


@pytest.mark.slow
def test_a_policy_at_random_scores_as_random_actions_do() -> None:
    """Against plain uniform actions of numpy, over as many episodes."""
    measured = mean_return(random_policy(), "fruitbot", 0, 50, 16, 2, 0, "cpu")
    env = ProcgenLevels("fruitbot", 16, 0, num_levels=50, seed=7)
    generator = np.random.default_rng(0)
    returns: list[float] = []
    env.reset()
    while len(returns) < 32:
        info = env.step(generator.integers(0, 15, 16))[-1]
        returns += info["episode_return"][env.ended].tolist()
    env.close()
    plain = env.normalize(returns)
    spread = np.hypot(measured["standard_error"], plain.std() / len(plain) ** 0.5)
    assert measured["episodes"] == 32
    assert abs(measured["mean"] - plain.mean()) < 4 * spread


@pytest.mark.parametrize("game", GAMES)
def test_the_packages_experts_are_small_good_and_worth_what_the_docs_say(game: str) -> None:
    assert (FOLDER / f"{game}.safetensors").stat().st_size < 2e6
    facts = load_expert(game).facts
    expert = facts["returns"]["held_out"]["expert"]
    chance = facts["returns"]["held_out"]["random"]
    page = " ".join((ROOT / "docs" / "rl.md").read_text().split())
    told = page[page.index("The package has an expert") : page.index("The paper trains on")]
    assert f"{expert['mean']:.3f} ({game.capitalize()}" in told
    assert f"{chance['mean']:.3f}" in told
    off = np.hypot(expert["standard_error"], chance["standard_error"])
    assert expert["mean"] - chance["mean"] > 5 * off


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "copies"), [("fruitbot", 4), pytest.param("starpilot", 16, marks=pytest.mark.sweep)]
)
def test_a_packaged_expert_plays_as_well_as_its_file_says(game: str, copies: int) -> None:
    """On its training levels, far above random play; measured anew on another device."""
    expert = load_expert(game)
    told = expert.facts["returns"]["training"]
    measured = mean_return(expert.network, game, 0, 200, copies, 1, 1, "cpu")
    spread = np.hypot(measured["standard_error"], told["expert"]["standard_error"])
    assert abs(measured["mean"] - told["expert"]["mean"]) < 4 * spread
    assert measured["mean"] > told["random"]["mean"] + 2 * spread


def test_experts_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = tiny_expert(tmp_path, "starpilot")
    with pytest.raises(ValueError, match="there is no expert for fruitbot"):
        load_expert("fruitbot", tmp_path)
    with pytest.raises(ValueError, match="is not an expert for fruitbot"):
        load_expert("fruitbot", path)
    with pytest.raises(ValueError, match="'pong'|got 'pong'"):
        load_expert("pong")
    facts = load_expert("starpilot", path).facts
    save_expert(path, Expert(Compact(features=32), facts))
    with pytest.raises(ValueError, match="is not an expert for starpilot"):
        load_expert("starpilot", path)
    ol.save(path, {"parameters": Compact().state_dict()})
    with pytest.raises(ValueError, match="is not an expert for starpilot"):
        load_expert("starpilot", path)


def test_levels_are_read_in_the_order_named() -> None:
    assert parse_levels("3") == (3,)
    assert parse_levels("7, 1,2-3") == (7, 1, 2, 3)


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "2-1", "1,1", "0-2,2", "0-100000"])
def test_levels_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="levels must"):
        parse_levels(text)


# ---------------------------------------------------------------------- transitions


def content_of(folder: Path) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted(folder.iterdir()))


def test_transitions_have_a_folder_for_every_expert_level_count_and_seed(tmp_path: Path) -> None:
    experts = [Expert(load_expert(game).network, {"game": "starpilot"}) for game in GAMES[:2]]
    names = {
        transitions_path(tmp_path, expert, level, count, seed)
        for expert, level, count, seed in itertools.product(experts, (0, 1), (40, 50), (0, 1))
    }
    assert len(names) == 16


@pytest.mark.slow
def test_transitions_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    """The frames that the game shows, the policy's actions, and the returns of whole episodes."""
    expert = load_expert("starpilot", tiny_expert(tmp_path, "starpilot"))
    told: list[int] = []
    facts = collect(tmp_path / "x", expert, 0, 401, n_envs=3, seed=3, tell=told.append)
    data = read_transitions(tmp_path / "x")
    assert data.facts == facts
    assert told[-1] == 401
    env = ProcgenLevels("starpilot", 3, 0)
    policy = MixturePolicy(policy_of(expert.network), 3, 15, seed=3)
    env.reset()
    frames: list[np.ndarray] = []
    actions: list[int] = []
    returns: list[float] = []
    while True:
        chosen = policy(env.observations, env.first).actions.numpy()
        for copy in np.flatnonzero(~env.ended):
            frames.append(env.observations[copy])
            actions.append(chosen[copy])
        if len(frames) >= 401:
            break
        info = env.step(chosen)[-1]
        returns += info["episode_return"][env.ended].tolist()
    env.close()
    assert np.array_equal(data.observations.numpy(), np.array(frames[:401]))
    assert data.actions.tolist() == actions[:401]
    assert facts["episodes"] == len(returns) > 0
    assert facts["mean_return"] == pytest.approx(env.normalize(returns).mean())


@pytest.mark.slow
def test_a_damaged_file_is_refused_and_a_missing_one_is_collected(tmp_path: Path) -> None:
    expert = load_expert("starpilot", tiny_expert(tmp_path, "starpilot"))
    tasks = ClonedTasks("starpilot", (0, 2), torch.device("cpu"), expert, tmp_path / "data", 40)
    said: list[str] = []
    tasks.prepare(said.append)
    tasks.prepare(said.append)
    assert len(said) == 2
    assert tasks.task_names == ["level 0", "level 2"]
    path = transitions_path(tmp_path / "data", expert, 2, 40, 0)
    content = content_of(path)
    data = tasks.transitions(1)
    assert tasks.transitions(1) is data  # the next cell does not read it again
    data.observations.fill_(7)  # mapped: the file is safe from whoever changes them
    assert content_of(path) == content
    frames = path / "observations.npy"
    whole = frames.read_bytes()
    for damaged in (whole[:-50], whole[:-50] + bytes([whole[-50] ^ 1]) + whole[-49:]):
        frames.write_bytes(damaged)
        with pytest.raises(ValueError, match="level2-40 is damaged"):
            read_transitions(path)
    shutil.rmtree(tmp_path / "data")
    tasks.transitions(1)
    assert content_of(path) == content
    with pytest.raises(ValueError, match="there is no folder .*nowhere"):
        read_transitions(tmp_path / "nowhere")
    assert not list(tmp_path.glob("**/*.part"))
