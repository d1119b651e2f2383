"""An estimate from a small part against the work of the whole, counted instead of timed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.experiments.tiny import result_of, tiny_cell, tiny_grid, tiny_scenario

from orderless.consolidation import ewc
from orderless.experiments import Cell, Store, estimate, policy_estimate, trial
from orderless.experiments.policy_cell import LifelongRun
from orderless.experiments.runs import course_of
from orderless.filters.exact.evidence import NormalEquations
from orderless.methods.policy_settings import PolicySettings
from orderless.methods.presets import POLICY_PRESETS
from orderless.particles import Ensemble
from orderless.rl.tasks import ClonedTasks, ProcgenTasks

CPU = torch.device("cpu")


class Counter:
    """A clock that goes one second further for every sample that a network looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        forward = Ensemble.forward

        def counted(ensemble: Ensemble, x: Any, *rest: Any, per_particle: bool = False) -> Any:
            self.now += x.shape[0] * x.shape[1] if per_particle else ensemble.n * x.shape[0]
            return forward(ensemble, x, *rest, per_particle=per_particle)

        fisher = ewc.fisher_information

        def looked(particles: Ensemble, data: Any, *, samples: int, **options: Any) -> Any:
            self.now += particles.n * min(samples, len(data[0]))
            return fisher(particles, data, samples=samples, **options)

        monkeypatch.setattr(Ensemble, "forward", counted)
        monkeypatch.setattr(ewc, "fisher_information", looked)
        for module in (estimate, policy_estimate):
            monkeypatch.setattr(module, "seconds", self.seconds)

    def seconds(self, action: Any, device: torch.device) -> int:
        before = self.now
        action()
        return self.now - before


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


def policy_cell(benchmark: str, method: str, settings: PolicySettings) -> Cell:
    return Cell(benchmark, "fruitbot", "demo", method, 0, (0, 1), 0, settings)


@pytest.mark.parametrize("method", ["gd", "wpf", "averaging", "lwf+wpf"])
@pytest.mark.parametrize("share", [1 / 16, 1.0])
def test_a_part_of_the_particles_tells_what_all_of_them_take(
    method: str, share: float, clock: Counter, tmp_path: Path
) -> None:
    cell = tiny_cell(method, particles=16, epochs=20, test_batch=20)
    found = estimate._try(cell, tiny_scenario(), share)
    assert found.share == (1 if method == "gd" else max(share, 1 / 8))  # two of them are many
    clock.now = 0
    result_of(cell, tmp_path)
    # plasticity is not in it; nor is lwf without a teacher, on the first task
    assert found.seconds == pytest.approx(clock.now, rel=0.15)


def test_the_end_of_a_task_takes_what_its_samples_take(clock: Counter) -> None:
    def cost(method: str, share: float) -> float:
        cell = tiny_cell(method, fisher_samples=24)
        return estimate._try(cell, tiny_scenario(), share).seconds

    whole = cost("ewc", 1.0) - cost("gd", 1.0)
    assert whole == pytest.approx(3 * 24)  # tasks x samples
    assert cost("ewc", 1 / 16) - cost("gd", 1 / 16) == pytest.approx(whole)


def test_exact_heads_take_the_usual_number_of_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, trials = tiny_cell("rb"), []
    at = NormalEquations.at

    def counted(equations: NormalEquations, *how: Any) -> Any:
        trials.extend(how[0])  # the heads that are tried at once
        return at(equations, *how)

    def seconds(action: Any, device: torch.device) -> int:
        before = len(trials)
        action()
        return len(trials) - before

    monkeypatch.setattr(NormalEquations, "at", counted)
    monkeypatch.setattr(estimate, "seconds", seconds)
    found = estimate._try(cell, tiny_scenario(), 1.0)
    assert found.seconds == 3 * cell.settings.rb_particles * estimate._TRIALS  # tasks x heads


@pytest.mark.parametrize("method", ["ppo", "ppo+wpf", "ppo+bootstrap"])
@pytest.mark.parametrize("share", [1 / 16, 1.0])
def test_a_part_of_a_minibatch_tells_what_playing_takes(
    method: str, share: float, clock: Counter, tmp_path: Path
) -> None:
    settings = POLICY_PRESETS["demo"].changed(particles=8, envs=8, rollout=48, minibatches=2)
    cell = policy_cell("procgen-lifelong", method, settings.changed(steps_per_level=384))
    tasks, store = ProcgenTasks("fruitbot", (0, 3), CPU), Store(tmp_path)
    found = policy_estimate._try_playing(cell, tasks, store, share)
    clock.now = 0
    run = course_of(cell, tasks, store)
    assert isinstance(run, LifelongRun)
    learner = run.learner
    for level in tasks.levels:  # one round each, without the measurements at a level's end
        learner.begin_level(level)
        learner.collect()
        learner.update()
    learner.env.close()
    # each rollout ends with one more look, and shorter ones end more often
    assert found.seconds == pytest.approx(clock.now, rel=1 / 24)
    assert found.bytes_held == sum(4 * p.numel() for p in run.filter.particles.parameters())


@pytest.mark.parametrize("share", [1 / 16, 1.0])
def test_cloning_counts_its_steps_and_what_every_particle_plays(
    share: float, clock: Counter, tmp_path: Path
) -> None:
    settings = POLICY_PRESETS["demo"].changed(transitions=64, batch_size=32, episodes=4, epochs=3)
    cell = policy_cell("procgen-bc", "bc+wpf", settings)  # 4 particles
    tasks = ClonedTasks("fruitbot", (0, 3), CPU, None, tmp_path, 64)  # type: ignore[arg-type]
    found = policy_estimate._try_cloning(cell, tasks, Store(tmp_path), share)
    length, _ = policy_estimate._random_play("fruitbot", 0, 8)
    learning = 2 * (3 * 2) * 32 * 4 * 2  # levels, steps, samples, particles, trapezoid
    playing = 3 * 2 * length * 8 * 4  # scorings, levels, steps, copies (own, mixture), particles
    assert found.seconds == pytest.approx(learning + playing)


@pytest.mark.parametrize("preset", ["gpu", "paper"])
def test_a_trial_of_the_largest_presets_is_small(
    preset: str, clock: Counter, tmp_path: Path
) -> None:
    cell = policy_cell("procgen-lifelong", "ppo+ewc+wpf", POLICY_PRESETS[preset])
    tasks = ProcgenTasks("starpilot", (0, 1), CPU)
    found = policy_estimate.try_policy(cell, tasks, Store(tmp_path))
    assert clock.now < 2000 < 1e6 < found.seconds
    assert not any(tmp_path.iterdir())


def test_trials_grow_until_one_takes_long_enough() -> None:
    tried = []

    def took(least: float, per_work: float) -> float:
        """Seconds of the last trial where calls cost `least` and all of the work `per_work`."""
        tried.clear()

        def attempt(share: float) -> trial.Trial:
            tried.append(max(share, 1 / 256))
            return trial.Trial(0.0, 0, least + per_work * tried[-1], tried[-1])

        return trial.long_enough(attempt).took

    assert took(0.0, 0.1) == pytest.approx(0.1) and tried == [1 / 256, 1.0]  # that is all
    assert took(0.0, 1e6) > trial.PATIENCE and tried == [1 / 256]  # the least is enough
    # what calls cost is a small part of it
    assert trial.PATIENCE / 4 <= took(0.03, 30.0) <= trial.PATIENCE and 1 / 256 < tried[-1] < 1


def test_an_estimate_says_that_it_is_rough_where_it_is(clock: Counter, tmp_path: Path) -> None:
    def text(**changes: Any) -> str:
        return estimate.estimate(tiny_grid(("wpf",), **changes), Store(tmp_path), None, CPU)

    assert "(roughly: scaled up from 1/8 of a step)" in text(particles=16)
    assert "roughly" not in text(particles=2)
