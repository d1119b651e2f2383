"""Cells of the ProcGen benchmarks: what they measure, that they resume, who equals whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.toys import (
    GAME,
    GAME_SETTINGS,
    assert_same_networks,
    game_cell,
    make_run,
    make_walker,
    result_of,
    stop_after,
    tiny_expert,
    walk,
    without_time,
)

import orderless as ol
from orderless_lab.rl import (
    PPO,
    Compact,
    PPOSettings,
    ProcgenLevels,
    UpdateInfo,
)
from orderless_lab.rl.cloning import BehaviourCloning, play
from orderless_lab.rl.transitions import read_transitions
from orderless_lab.runs.procgen import binned_returns, figures_of
from orderless_lab.runs.store import as_json
from orderless_lab.suites.procgen import PROCGEN_LIFELONG

LIFELONG, CLONING = "procgen-lifelong", "procgen-bc"


# ---------------------------------------------------------------------- against plain loops


@pytest.mark.slow
def test_a_lifelong_cell_is_ppo_level_after_level(tmp_path: Path) -> None:
    run = make_run(game_cell(LIFELONG, "ppo", steps_per_level=10 * 32), tmp_path)
    record = as_json(run.run())

    env = ProcgenLevels(GAME, 4, 0)
    particles = ol.Ensemble(Compact, 1, seed=0)
    optimizer = torch.optim.Adam(particles.parameters(), lr=5e-4)
    filter = ol.GradientDescent(particles, optimizer, max_grad_norm=0.5)
    ppo, scores = PPO(filter, env, PPOSettings(steps=8, minibatches=2), seed=0), {}
    finals: list[float | None] = []
    for place, level in enumerate((1, 0)):
        ppo.switch(level)
        ppo.learn(320)
        ended: list[list[float]] = [[], [], []]
        episodes = ppo.take_episodes()
        last = [float(env.normalize(e.value)) for e in episodes[int(0.8 * len(episodes)) :]]
        finals.append(sum(last) / len(last) if last else None)
        for episode in episodes:
            third = (episode.step - 320 * place - 1) * 3 // 320
            ended[third].append(float(env.normalize(episode.value)))
        means = [sum(values) / len(values) for values in ended if values]
        running = float(env.normalize(env.returns).mean())
        scores[level] = sum(means) / len(means) if means else running
    env.close()

    assert record["scores"]["particles"][-1] == pytest.approx([scores[0], scores[1]])
    assert record["final_returns"] == [None if v is None else pytest.approx(v) for v in finals]
    assert any(value is not None for value in finals)
    assert record["scores"]["particles"][:2] == [[None, None]] * 2
    assert_same_networks(run.filter.particles, particles)
    assert record["curves"]["step"] == pytest.approx([320 * (k + 0.5) / 3 for k in range(6)])
    assert record["trace"]["step"] == list(range(32, 641, 32))
    assert record["unit"] == "return" and record["task_names"] == ["level 0", "level 1"]
    assert all(len(values) == 2 for values in record["plasticity"].values())


@pytest.mark.slow
def test_the_order_of_levels_changes_nothing_but_the_order(tmp_path: Path) -> None:
    """Networks that learn nothing play a level the same way whenever its turn comes."""
    options: Any = {"adam_lr": 1e-30, "steps_per_level": 8 * 32}
    forth, back = (
        result_of(game_cell(LIFELONG, "ppo", order, **options), tmp_path / str(order[0]))
        for order in ((0, 1), (1, 0))
    )
    assert forth["scores"]["particles"][-1] == back["scores"]["particles"][-1]
    assert forth["scores"]["particles"][-1][0] != forth["scores"]["particles"][-1][1]


def test_bins_are_equal_parts_of_the_steps() -> None:
    steps, returns = [1, 10, 11, 30, 30], np.array([1.0, 3.0, 5.0, 7.0, 9.0])
    assert binned_returns(steps, returns, 30, 3) == [2.0, 5.0, 8.0]
    assert binned_returns([25], np.array([4.0]), 30, 3) == [None, None, 4.0]
    assert binned_returns([], np.array([]), 30, 2) == [None, None]


@pytest.mark.slow
def test_a_cloning_cell_is_a_loop_over_levels(tmp_path: Path) -> None:
    cell = game_cell(CLONING, "bc+averaging", expert=str(tiny_expert(tmp_path)))
    run = make_run(cell, tmp_path)
    record = as_json(run.run())

    particles = ol.Ensemble(lambda: Compact(value=False), 2, seed=0)
    optimizer = torch.optim.Adam(particles.parameters(), lr=5e-4)
    filter = ol.AveragingParticles(particles, optimizer, max_grad_norm=0.5)
    cloning, env = BehaviourCloning(filter, batch_size=16, seed=0), ProcgenLevels(GAME, 2)
    rows: list[list[float]] = []
    shown: dict[int, float | None] = {}
    for level in (None, 1, 0):
        if level is not None:
            (path,) = tmp_path.glob(f"procgen/*/level{level}-96")
            data = read_transitions(path)
            shown[level] = data.facts["mean_return"]
            cloning.learn(data.observations, data.actions, level=level)
        rows.append([])
        for played in (0, 1):
            env.switch(played)
            rows[-1].append(play(filter, env, combine="accuracy", seed=0).mean)
    env.close()

    assert np.array(record["scores"]["particles"]) == pytest.approx(np.array(rows))
    assert np.array(record["scores"]["probs"]).shape == (3, 2)
    assert_same_networks(run.filter.particles, particles)
    assert record["trace"]["step"] == list(range(1, 13))  # 6 batches of 16 on each level
    assert record["expert"]["level_returns"] == [shown[0], shown[1]]
    assert 0 < record["scoring_duration"] < record["duration"]


# ---------------------------------------------------------------------- who equals whom


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("ppo+wpf", {"particles": 1}),
        ("ppo+ewc", {"ewc_strength": 0.0}),
    ],
)
def test_one_particle_or_no_penalty_is_plain_ppo(
    method: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    plain, other = (
        make_run(game_cell(LIFELONG, name, **changes), tmp_path / name) for name in ("ppo", method)
    )
    records = [as_json(each.run()) for each in (plain, other)]
    assert records[0]["scores"] == records[1]["scores"]
    assert_same_networks(plain.filter.particles, other.filter.particles)


def test_the_spread_of_log_weights_is_that_of_the_particles_left() -> None:
    parts = torch.tensor([[1.0, 3.0, torch.nan], [-5.0, -5.0, 2.0], [0.0, 4.0, 0.0]])
    alive = torch.tensor([True, True, False])
    log_weights = torch.where(alive, 0.5, 0.0).log().double()
    info = UpdateInfo(*[torch.zeros(3)] * 7, parts.double(), log_weights, alive)
    spread = [figures_of(info)[f"log_weight_{term}"] for term in ("policy", "value", "entropy")]
    assert spread == [1.0, 0.0, 2.0]


# ---------------------------------------------------------------------- consolidation


@pytest.mark.slow
def test_ewc_holds_the_policy_where_a_level_left_it() -> None:
    moved = {}
    for strength in (None, 0.0, 300.0):
        learner = make_walker(strength)
        walk(learner, 0)
        left = [p.detach().clone() for p in learner.filter.particles.parameters()]
        walk(learner, 1)
        now = [p.detach() for p in learner.filter.particles.parameters()]
        moved[strength] = [float((a - b).square().sum()) for a, b in zip(now, left, strict=True)]
    # a penalty of 0 is added in float32: its step is rounded elsewhere
    assert moved[0.0] == pytest.approx(moved[None], rel=1e-4)
    names = [name for name, _ in learner.filter.particles.named_parameters()]
    policy = names.index("policy.weight")
    assert moved[300.0][policy] < 0.5 * moved[None][policy]
    assert learner.consolidation is not None and learner.consolidation.tasks == 2
    importance = learner.consolidation.importance
    assert importance["policy.weight"].any() and not importance["value.weight"].any()


def test_what_is_no_experience_is_not_consolidated() -> None:
    learner = make_walker(1.0)
    learner.begin_level(0)
    learner.collect()
    rollout = learner.rollout
    assert rollout is not None and not rollout.valid.all()
    frames, actions = learner.experience()
    kept = rollout.valid.flatten()
    assert len(frames) == len(actions) == int(kept.sum())
    ours = torch.cat([frames, actions.unsqueeze(1)], 1)
    everything = torch.cat(
        [rollout.observations.flatten(0, 1), rollout.actions.flatten().unsqueeze(1)], 1
    )[kept]
    assert sorted(ours.tolist()) == sorted(everything.tolist())
    assert not torch.equal(ours, everything)  # at random: the first of them are no time series


# ---------------------------------------------------------------------- stopping


@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "method", "after"),
    [
        (LIFELONG, "ppo+ewc+wpf", 5 * 32),
        (LIFELONG, "ppo+trac+wpf", 2 * 32),
        (LIFELONG, "ppo+bootstrap", 4 * 32),
        (CLONING, "bc+wpf", 9),
    ],
)
def test_a_stopped_cell_goes_on_as_if_nothing_had_happened(
    benchmark: str, method: str, after: int, tmp_path: Path
) -> None:
    expert = str(tiny_expert(tmp_path))
    cell = game_cell(benchmark, method, expert=expert)
    whole = without_time(result_of(cell, tmp_path))
    assert whole["died_at"] is None and np.isfinite(whole["scores"]["particles"][-1]).all()
    folder = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        result_of(cell, folder, checkpoint_every=0.0, tick=stop_after(after))
    assert list(folder.glob("checkpoints/*.st"))
    ticks: list[int] = []
    again = make_run(cell, folder, checkpoint_every=1e9, tick=ticks.append)
    assert without_time(again.run("the command")) == whole
    assert ticks[0] == after  # it did not begin anew
    assert not list(folder.glob("checkpoints/*.st"))


def test_a_clone_of_another_expert_begins_anew(tmp_path: Path) -> None:
    cell = game_cell(CLONING, "bc", expert=str(tiny_expert(tmp_path)))
    resumed: list[int] = []
    make_run(cell, tmp_path)._checkpoint()
    for seed in (0, 1):
        tiny_expert(tmp_path, seed=seed)  # at the same place
        run = make_run(cell, tmp_path, tick=resumed.append)
        run._resume()
        assert len(resumed) == 1  # by the first, and by no other


@pytest.mark.slow
def test_networks_that_break_down_go_on_playing_as_they_were(tmp_path: Path) -> None:
    record = result_of(game_cell(LIFELONG, "ppo", adam_lr=1e30), tmp_path)
    assert record["died_at"] is not None
    assert np.isfinite(record["scores"]["particles"][-1]).all()


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("benchmark", "change", "sentence"),
    [
        (LIFELONG, "levels=3000000000", "level must lie in 0..2147483646, got 3000000000"),
        (LIFELONG, "minibatches=7", "minibatches=7 must divide the rollout of 4 copies x 8 steps"),
        (CLONING, "transitions=5", "transitions=5 must fill a batch of 16"),
    ],
)
def test_bad_settings_are_named(benchmark: str, change: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        GAME_SETTINGS[benchmark].with_text([change])


def test_cyclic_orders_put_every_level_at_every_place() -> None:
    settings = GAME_SETTINGS[LIFELONG]
    assert PROCGEN_LIFELONG.orders(3, 3, settings) == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    with pytest.raises(ValueError, match="there are 3 cyclic orders of 3 levels, got permutations"):
        PROCGEN_LIFELONG.orders(3, 4, settings)
    random = PROCGEN_LIFELONG.orders(3, 6, settings.changed(orders="random"))
    assert len(set(random)) == 6
