"""An estimate from a small part against the work of the whole, counted instead of timed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.experiments.tiny import result_of, tiny_cell, tiny_grid, tiny_scenario

from orderless.consolidation import ewc
from orderless.ensemble import Ensemble
from orderless_lab.experiments import Cell, Store, estimate
from orderless_lab.experiments.grid import runner_of
from orderless_lab.methods import METHODS
from orderless_lab.methods.policy_settings import PolicySettings
from orderless_lab.methods.presets import POLICY_PRESETS
from orderless_lab.rl.experts import load_expert
from orderless_lab.rl.tasks import ClonedTasks, ProcgenTasks

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
        monkeypatch.setattr(estimate._Stopwatch, "now", lambda watch: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


def policy_cell(benchmark: str, method: str, settings: PolicySettings) -> Cell:
    return Cell(benchmark, "fruitbot", "demo", method, 0, (0, 1), 0, settings)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gd", "wpf", "averaging", "lwf+wpf", "ewc", "joint", "er"])
def test_a_part_of_the_particles_tells_what_all_of_them_take(
    method: str, clock: Counter, tmp_path: Path
) -> None:
    cell = tiny_cell(method, particles=16, epochs=3, test_batch=20, fisher_samples=24)
    part, whole = (estimate.try_cell(cell, tiny_scenario(), share) for share in (1 / 16, 1.0))
    many = method not in ("gd", "ewc", "joint", "er")
    assert part.share == (1 / 8 if many else 1)  # two of them are many
    assert whole.share == 1
    clock.now = 0
    result_of(cell, tmp_path)
    # lwf has no teacher on the first task, and replay nothing to mix in on the first batch
    assert part.seconds == pytest.approx(clock.now, rel=0.1)
    assert whole.seconds == pytest.approx(clock.now, rel=0.1)


def test_test_data_and_fisher_samples_are_cut_alike(clock: Counter) -> None:
    """Both are looked at when a task has ended; a tenth of each is scaled up tenfold."""
    scenario = tiny_scenario()
    for task in scenario.tasks:
        object.__setattr__(task, "x_test", task.x_test.repeat(50, 1, 1, 1))
        object.__setattr__(task, "y_test", task.y_test.repeat(50))
    cell = tiny_cell("ewc", fisher_samples=20, epochs=20, test_batch=100)
    whole, part = (estimate.try_cell(cell, scenario, share) for share in (1.0, 1 / 10))
    assert part.seconds == pytest.approx(whole.seconds, rel=0.05)


@pytest.mark.slow
def test_exact_features_are_counted_for_every_sample(clock: Counter, tmp_path: Path) -> None:
    cell = tiny_cell("rb", epochs=10, rb_block=8)
    found = estimate.try_cell(cell, tiny_scenario(), 1.0)
    clock.now = 0
    result_of(cell, tmp_path)
    # features are computed in blocks of 256 rows, the last of which is padded
    assert clock.now / 3 < found.seconds < 3 * clock.now


def test_another_method_with_exact_features_is_counted_alike(
    clock: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "mine", dataclasses.replace(METHODS["rb"], name="mine"))
    cells = [tiny_cell(name, epochs=10, rb_particles=8) for name in ("rb", "mine")]
    rb, mine = (estimate.try_cell(cell, tiny_scenario(), 1 / 4) for cell in cells)
    assert rb.share < 1 and mine == rb


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppo", "ppo+wpf", "ppo+bootstrap"])
def test_a_part_of_a_minibatch_tells_what_playing_takes(
    method: str, clock: Counter, tmp_path: Path
) -> None:
    settings = POLICY_PRESETS["demo"].changed(
        network="compact", particles=4, envs=4, rollout=24, minibatches=2
    )
    cell = policy_cell("procgen-lifelong", method, settings.changed(steps_per_level=96))
    tasks, store = ProcgenTasks("fruitbot", (0, 3), CPU), Store(tmp_path)
    trials = [estimate.try_cell(cell, tasks, share) for share in (1 / 16, 1.0)]
    clock.now = 0
    store.prepare()
    runner = runner_of(cell, tasks, store)
    runner.run()
    particles = runner.learner.filter.particles
    held = sum(4 * p.numel() for p in particles.parameters())
    for found in trials:
        # each rollout ends with one more look, and shorter ones (8 steps at least) end more often
        assert found.seconds == pytest.approx(clock.now, rel=1 / 8)
        assert found.bytes_held == held


@pytest.mark.slow
def test_cloning_counts_its_steps_and_what_every_particle_plays(
    clock: Counter, tmp_path: Path
) -> None:
    settings = POLICY_PRESETS["demo"].changed(transitions=64, batch_size=32, episodes=4, epochs=9)
    cell = policy_cell("procgen-bc", "bc+wpf", settings)  # 4 particles
    tasks = ClonedTasks("fruitbot", (0, 3), CPU, load_expert("fruitbot"), tmp_path, 64)
    found = estimate.try_cell(cell, tasks, 1.0)
    assert not any(tmp_path.iterdir())  # what a trial collects of the expert is not kept
    store = Store(tmp_path)
    store.prepare()
    clock.now = 0
    runner_of(cell, tasks, store).run()
    # episodes are longer or shorter as the policy learns, and the expert's own are counted
    assert clock.now / 3 < found.seconds < 3 * clock.now


@pytest.mark.slow
def test_a_trial_of_the_largest_preset_is_small(clock: Counter) -> None:
    settings = POLICY_PRESETS["paper"].changed(network="compact")  # samples are counted, not time
    cell = policy_cell("procgen-lifelong", "ppo+ewc+wpf", settings)
    tasks = ProcgenTasks("starpilot", (0, 1), CPU)
    found = estimate.try_cell(cell, tasks, 0.0)
    assert clock.now < 5_000 < 1e6 < found.seconds


def test_trials_grow_until_one_takes_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def took(least: float, per_work: float) -> float:
        """Seconds of the last trial where calls cost `least` and all of the work `per_work`."""
        tried.clear()

        def attempt(cell: Any, tasks: Any, share: float) -> estimate.Trial:
            tried.append(max(share, 1 / 256))
            return estimate.Trial(0.0, 0, least + per_work * tried[-1], tried[-1])

        monkeypatch.setattr(estimate, "try_cell", attempt)
        return estimate.long_enough(tiny_cell(), None).took

    assert took(0.0, 0.1) == pytest.approx(0.1) and tried == [1 / 256, 1.0]  # that is all
    assert took(0.0, 1e6) > estimate.PATIENCE and tried == [1 / 256]  # the least is enough
    # what calls cost is a small part of it
    assert estimate.PATIENCE / 4 <= took(0.03, 30.0) <= estimate.PATIENCE
    assert 1 / 256 < tried[-1] < 1


def test_an_estimate_says_that_it_is_rough_where_it_is(clock: Counter, tmp_path: Path) -> None:
    def text(**changes: Any) -> str:
        grid = tiny_grid(("wpf",), **changes)
        return "\n".join(estimate.estimate(grid, Store(tmp_path), None, CPU))

    assert "(roughly: scaled up from 1/8 of a step)" in text(particles=16)
    assert "roughly" not in text(particles=2)
