"""Experts: their files, what is measured of them, and what they leave to be cloned."""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.tests.rl.tiny_policies import tiny_expert

import orderless as ol
from orderless_lab.rl import Compact, MixturePolicy, PPOSettings, ProcgenLevels
from orderless_lab.rl.experts import (
    FOLDER,
    Expert,
    ExpertTraining,
    load_expert,
    mean_return,
    random_policy,
    save_expert,
)
from orderless_lab.rl.games import GAMES, parse_levels
from orderless_lab.rl.settings import rollouts_for
from orderless_lab.rl.tasks import ClonedTasks
from orderless_lab.rl.transitions import collect, read_transitions, transitions_path

ROOT = Path(__file__).parents[3]
QUICK = PPOSettings(steps=16, minibatches=2)


def make_training(settings: PPOSettings = QUICK, **changes: int) -> ExpertTraining:
    options = {"levels": 3, "n_envs": 4, "seed": 5, **changes}
    return ExpertTraining("starpilot", network="compact", settings=settings, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_training_goes_on_from_its_state_and_becomes_a_file(tmp_path: Path) -> None:
    training, told = make_training(), []
    training.learn(2 * 64, lambda: told.append(training.steps))
    assert told == [64, 128]
    again = make_training()
    again.load_state_dict(training.state_dict())
    assert again.steps == 128
    for ours, theirs in zip(
        training.ppo.particles.parameters(), again.ppo.particles.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    again.learn(3 * 64)
    expert = again.expert(episodes=1)
    save_expert(tmp_path / "starpilot.safetensors", expert)
    loaded = load_expert("starpilot", tmp_path)
    assert loaded.facts == expert.facts and loaded.digest == expert.digest
    assert loaded.facts["steps"] == 192
    trained = again.ppo.particles[0].state_dict()
    for name, tensor in loaded.network.state_dict().items():
        assert torch.equal(tensor, trained[name].bfloat16().float())
    with pytest.raises(ValueError, match="this training has levels=3, not 4"):
        make_training(levels=4).load_state_dict(training.state_dict())
    with pytest.raises(ValueError, match="this training has envs=4, not 8"):
        make_training(n_envs=8).load_state_dict(training.state_dict())


@pytest.mark.parametrize(
    ("copies", "steps"), [(1, 256), (64, 256), (100, 160), (256, 64), (1024, 16), (5000, 8)]
)
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
    generator, returns = np.random.default_rng(0), []
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
def test_the_packages_experts_beat_chance_on_levels_they_have_never_seen(game: str) -> None:
    """By what was measured when they were trained, and by much more than it may be off."""
    measured = load_expert(game).facts["returns"]["held_out"]
    expert, chance = measured["expert"], measured["random"]
    off = np.hypot(expert["standard_error"], chance["standard_error"])
    assert expert["mean"] - chance["mean"] > 5 * off


def table_of_the_docs(heading: str) -> list[list[str]]:
    """The cells of the table in docs/rl.md that has this line at its head."""
    lines = (ROOT / "docs" / "rl.md").read_text().splitlines()
    rows = takewhile(lambda line: line.startswith("|"), lines[lines.index(heading) + 2 :])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_experts_on_the_way_are_worth_what_the_docs_say() -> None:
    results = json.loads((ROOT / "lab" / "results" / "experts.json").read_text())
    head = "| game | levels | steps for an update | steps | training levels | new levels |"
    expected = []
    for one in results["measured"]:
        returns = (one["returns"][where]["expert"] for where in ("training", "held_out"))
        told = [f"{r['mean']:.3f} +- {r['standard_error']:.3f}" for r in returns]
        numbers = [f"{one[name]:,}" for name in ("levels", "steps_per_update", "steps")]
        expected.append([one["game"].capitalize(), *numbers, *told])
    rows, above = [], [""] * 6
    for cells in table_of_the_docs(head):  # an empty cell is the one above it
        above = [cell or before for cell, before in zip(cells, above, strict=True)]
        rows.append(above)
    assert rows == [row for row in expected if row in rows]  # the page tells some, in this order
    assert len(rows) >= 3


def test_dodgeballs_training_went_as_the_docs_say() -> None:
    results = json.loads((ROOT / "lab" / "results" / "experts.json").read_text())
    millions = [1, 2, 6, 10, 14, 17, 20]
    head = "| steps for an update | epochs | 1st million | 2nd | 6th | 10th | 14th | 17th | 20th |"
    expected = []
    for one in results["dodgeball_on_100000_levels"][:3]:
        told = [f"{one['curve'][million - 1]:.3f}" for million in millions]
        epochs = one["changes"].get("epochs", PPOSettings().epochs)
        expected.append([f"{one['steps_per_update']:,}", str(epochs), *told])
    assert table_of_the_docs(head) == expected


@pytest.mark.parametrize("game", GAMES)
def test_the_packages_experts_are_small_and_worth_what_the_docs_say(game: str) -> None:
    assert (FOLDER / f"{game}.safetensors").stat().st_size < 2e6
    facts = load_expert(game).facts
    cells = [game.capitalize(), f"{facts['levels']:,}", f"{facts['steps']:,}"]
    for where in ("training", "held_out"):
        for who in ("expert", "random"):
            measured = facts["returns"][where][who]
            cells.append(f"{measured['mean']:.3f} +- {measured['standard_error']:.3f}")
    assert f"| {' | '.join(cells)} |" in (ROOT / "docs" / "rl.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "copies"),
    [("fruitbot", 4), pytest.param("starpilot", 16, marks=pytest.mark.sweep)],
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
    with pytest.raises(ValueError, match="there is no expert for fruitbot at .*fruitbot.safetens"):
        load_expert("fruitbot", tmp_path)
    with pytest.raises(ValueError, match="is an expert for starpilot, not for fruitbot"):
        load_expert("fruitbot", path)
    with pytest.raises(ValueError, match="game must be one of starpilot, fruitbot, dodgeball"):
        load_expert("pong")
    facts = load_expert("starpilot", path).facts
    save_expert(path, Expert(Compact(features=32), facts))
    with pytest.raises(
        ValueError, match=r"another network: 'body.5.weight' is .32, 576. there and .64, 576."
    ):
        load_expert("starpilot", path)
    save_expert(path, Expert(Compact(value=False), facts))
    with pytest.raises(ValueError, match="holds another network: 'value.bias' is not in both"):
        load_expert("starpilot", path)
    save_expert(path, Expert(Compact(), {**facts, "returns": {}}))
    with pytest.raises(ValueError, match="is not an expert that .* wrote .'training'."):
        load_expert("starpilot", path)
    broken = Compact()
    torch.nn.init.constant_(broken.policy.bias, torch.nan)
    save_expert(path, Expert(broken, facts))
    with pytest.raises(ValueError, match="not all of its numbers are finite"):
        load_expert("starpilot", path)
    save_expert(path, Expert(Compact(), facts))
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        load_expert("starpilot", path)
    path.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    with pytest.raises(ValueError, match="is damaged"):
        load_expert("starpilot", path)
    ol.save(path, {"parameters": Compact().state_dict()})
    with pytest.raises(ValueError, match="is not an expert that `orderless expert train` wrote"):
        load_expert("starpilot", path)


@pytest.mark.parametrize(
    ("text", "levels"), [("3", (3,)), ("0-2", (0, 1, 2)), ("7, 1,2-3", (7, 1, 2, 3))]
)
def test_levels_are_read_in_the_order_named(text: str, levels: tuple[int, ...]) -> None:
    assert parse_levels(text) == levels


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "2-1", "0,2-1", "1,1", "0-2,2", "1.5"])
def test_levels_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="levels must"):
        parse_levels(text)


# ---------------------------------------------------------------------- transitions


def content_of(folder: Path) -> tuple[bytes, ...]:
    names = ("observations.npy", "actions.npy", "facts.json")
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    return tuple((folder / name).read_bytes() for name in names)


@pytest.mark.slow
def test_what_is_collected_depends_on_expert_and_seed_alone(tmp_path: Path) -> None:
    first = load_expert("starpilot", tiny_expert(tmp_path, "starpilot"))
    (tmp_path / "second").mkdir()
    other = load_expert("starpilot", tiny_expert(tmp_path / "second", "starpilot", seed=1))
    files = {}
    for name, expert, seed in (
        ("one", first, 0),
        ("again", first, 0),
        ("seed", first, 1),
        ("other", other, 0),
    ):
        collect(tmp_path / name, expert, 3, 50, seed=seed, n_envs=4)
        files[name] = content_of(tmp_path / name)
    assert files["one"] == files["again"]
    assert len(set(files.values())) == 3
    names = {transitions_path(tmp_path, e, 3, 50, s) for e in (first, other) for s in (0, 1)}
    assert len(names) == 4


@pytest.mark.slow
def test_the_transitions_are_what_the_game_shows(tmp_path: Path) -> None:
    """The recorded actions, played anew on the level, give the recorded frames."""
    expert = load_expert("starpilot", tiny_expert(tmp_path, "starpilot"))
    copies, count, told = 2, 401, []
    facts = collect(tmp_path / "x", expert, 0, count, n_envs=copies, tell=told.append)
    data = read_transitions(tmp_path / "x")
    assert data.facts == facts and told[-1] == count
    assert data.observations.dtype == torch.uint8 and len(data.actions) == count
    env, place, returns = ProcgenLevels("starpilot", copies, 0), 0, []
    frames, _ = env.reset()
    while place < count:
        counted = np.flatnonzero(~env.ended)[: count - place]
        actions = np.zeros(copies, dtype=np.int64)
        for copy in counted:
            assert np.array_equal(data.observations[place].numpy(), frames[copy])
            actions[copy] = int(data.actions[place])
            place += 1
        if place < count:
            frames, *_, info = env.step(actions)
            returns += info["episode_return"][env.ended].tolist()
    env.close()
    assert facts["episodes"] == len(returns) > 0
    assert facts["mean_return"] == pytest.approx(env.normalize(returns).mean())


@pytest.mark.slow
def test_a_damaged_file_is_refused_and_a_missing_one_is_collected(tmp_path: Path) -> None:
    expert = load_expert("starpilot", tiny_expert(tmp_path, "starpilot"))
    tasks = ClonedTasks("starpilot", (0, 2), torch.device("cpu"), expert, tmp_path / "data", 40)
    said: list[str] = []
    tasks.prepare(said.append)
    assert len(said) == 2 and tasks.task_names == ["level 0", "level 2"]
    tasks.prepare(said.append)
    assert len(said) == 2
    path = transitions_path(tmp_path / "data", expert, 2, 40, 0)
    content = content_of(path)
    assert torch.equal(tasks.transitions(1).actions, read_transitions(path).actions)
    assert tasks.transitions(1) is tasks.transitions(1)  # the next cell does not read it again
    frames = path / "observations.npy"
    whole = frames.read_bytes()
    for damaged in (whole[:-50], whole[:2000], b"", _flipped(whole)):
        frames.write_bytes(damaged)
        with pytest.raises(ValueError, match="level2-40 is damaged .*: delete it"):
            read_transitions(path)
    frames.unlink()
    with pytest.raises(ValueError, match="level2-40 is damaged .*: delete it"):
        read_transitions(path)
    shutil.rmtree(tmp_path / "data")
    assert len(tasks.transitions(1).actions) == 40
    assert content_of(path) == content
    with pytest.raises(ValueError, match="there is no folder .*nowhere"):
        read_transitions(tmp_path / "nowhere")
    assert not list(tmp_path.glob("**/*.part"))


def _flipped(data: bytes) -> bytes:
    """One bit in the middle of the frames is another."""
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_transitions_are_bytes_of_the_shape_that_is_named(tmp_path: Path) -> None:
    """The checksum is of the content: the kind and shape stand in NumPy's headers beside it."""
    frames, actions = np.full((2, 3, 64, 64), 200, np.uint8), np.array([1, 14], np.uint8)
    digest = hashlib.sha256(frames.tobytes() + actions.tobytes()).hexdigest()
    facts = {"format": 2, "transitions": 2, "sha256": digest, "episodes": 0, "mean_return": None}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    np.save(tmp_path / "actions.npy", actions)
    np.save(tmp_path / "observations.npy", frames)
    assert read_transitions(tmp_path).observations.dtype == torch.uint8
    for other in (frames.view(np.int8), frames.reshape(2, 64, 64, 3), frames.reshape(6, 64, 64)):
        np.save(tmp_path / "observations.npy", other)
        with pytest.raises(ValueError, match=r"is damaged .* not 2 transitions.*: delete it"):
            read_transitions(tmp_path)


@pytest.mark.slow
def test_frames_are_mapped_and_the_file_is_safe_from_whoever_changes_them(tmp_path: Path) -> None:
    expert = load_expert("starpilot", tiny_expert(tmp_path, "starpilot"))
    collect(tmp_path / "x", expert, 0, 20, n_envs=4)
    data = read_transitions(tmp_path / "x")
    assert np.array_equal(np.load(tmp_path / "x" / "observations.npy"), data.observations.numpy())
    data.observations.fill_(7)
    assert read_transitions(tmp_path / "x").actions.equal(data.actions)


@pytest.mark.slow
def test_two_halves_of_the_copies_bring_what_all_of_them_bring(tmp_path: Path) -> None:
    """An odd number of copies, against a plain loop over all of them in one environment."""
    expert = load_expert("starpilot", tiny_expert(tmp_path, "starpilot"))
    collect(tmp_path / "x", expert, 4, 60, n_envs=5, seed=3)
    env, policy = ProcgenLevels("starpilot", 5, 4), MixturePolicy(expert.filter(), 5, 15, seed=3)
    env.reset()
    frames, chosen = [], []
    for _ in range(12):
        decision = policy(torch.from_numpy(env.observations), torch.from_numpy(env.first))
        frames.append(env.observations.copy())
        chosen.append(decision.actions.numpy())
        env.step(chosen[-1])
    env.close()
    data = read_transitions(tmp_path / "x")
    assert np.array_equal(data.observations.numpy(), np.concatenate(frames))
    assert np.array_equal(data.actions.numpy(), np.concatenate(chosen))
