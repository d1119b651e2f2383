"""The map of when weighting helps: learning rate x initialisation x number of particles.

One training run per (learning rate, initialisation, order, seed) with the largest number of
particles; everything that differs in weights alone is read off it (`readings.py`). Adam, the exact
filter (`rb`) and the Gaussian-sum filter (`gsf`) are trained beside it. SplitMNIST, domain.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..methods import Setup, find_method
from ..methods.learners import ContinualLearner
from ..methods.settings import Settings
from ..scenarios import Scenario, orders
from .benchmarks import find_benchmark
from .evaluation import displacement
from .launch.local import one_thread
from .readings import Reading, read, sgd_readings
from .scenarios import Scenarios
from .store import Store, StoreError, device_name, versions
from .timing import span

BENCHMARK, KIND = "splitmnist", "domain"


@dataclass(frozen=True)
class Regime:
    """What is swept, and on what."""

    settings: Settings
    """Data, network and batches."""
    rates: tuple[float, ...]
    """Learning rates of SGD and of Adam."""
    inits: tuple[str, ...]
    """"fresh", "perturb" or both."""
    particles: tuple[int, ...]
    """N; the largest is trained."""
    loss_scales: tuple[float, ...]
    """Factors on the loss in the weights, beside 1."""
    min_ess: tuple[float, ...]
    """Least effective sample sizes, as shares of N."""
    gsf_variances: tuple[float, ...]
    """The Gaussian-sum filter's sigma^2."""
    gsf_particles: int
    """Its number of particles."""
    permutations: int
    seeds: int

    def __post_init__(self) -> None:
        for name in ("permutations", "seeds", "gsf_particles"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if min(self.particles) < 1:
            raise ValueError(f"particles must be at least 1, got {min(self.particles)}")
        if any(not 0 < share <= 1 for share in self.min_ess):
            raise ValueError(f"min_ess must be shares of N between 0 and 1, got {self.min_ess}")


REGIMES = {
    "demo": Regime(
        Settings(source="embedded", hidden=100, batch_size=8, rb_features=512),
        rates=(1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 1e-1),
        inits=("fresh", "perturb"),
        particles=(5, 20),
        loss_scales=(0.1, 8.0),
        min_ess=(0.1, 0.5),
        gsf_variances=(1e-5, 1e-4, 3e-4, 1e-3),
        gsf_particles=8,
        permutations=5,
        seeds=2,
    ),
    "full": Regime(
        Settings(precision="tf32"),
        rates=(1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1),
        inits=("fresh", "perturb"),
        particles=(10, 100),
        loss_scales=(0.1, 128.0),
        min_ess=(0.1, 0.5),
        gsf_variances=(1e-5, 1e-4, 3e-4, 1e-3, 1e-2),
        gsf_particles=10,
        permutations=5,
        seeds=3,
    ),
}


def find_regime(name: str) -> Regime:
    if name not in REGIMES:
        raise ValueError(f"unknown preset {name!r} of the map: choose from {', '.join(REGIMES)}")
    return REGIMES[name]


@dataclass(frozen=True)
class Training:
    """One run: a method with its settings, in one order, from one seed."""

    method: str
    settings: Settings
    order_index: int
    order: tuple[int, ...]
    seed: int

    @property
    def rate(self) -> float | None:
        """What is swept along the map's axis; the exact filter has nothing of the kind."""
        s = self.settings
        return {"sgd": s.lr, "adam": s.adam_lr, "gsf": s.flat()["gsf_sigma2"]}.get(self.method)

    @property
    def name(self) -> str:
        rate = "" if self.rate is None else f"-{self.rate:g}"
        init = "" if self.method == "rb" else f"-{self.settings.init}"
        return f"{self.method}{init}{rate}-order{self.order_index}-seed{self.seed}"


def trainings(regime: Regime, tasks: int) -> Iterator[Training]:
    """Orders and seeds outside: after a while the whole map is there, if roughly."""
    variants: list[tuple[str, Settings]] = [("rb", regime.settings)]
    for init in regime.inits:
        base = regime.settings.changed(init=init, particles=max(regime.particles))
        variants += [("sgd", base.changed(lr=rate)) for rate in regime.rates]
        variants += [("adam", base.changed(adam_lr=rate)) for rate in regime.rates]
    base = regime.settings.changed(particles=regime.gsf_particles)
    variants += [("gsf", base.changed(gsf_sigma2=sigma2)) for sigma2 in regime.gsf_variances]
    for seed in range(regime.seeds):
        sequence = orders(tasks, regime.permutations, regime.settings.order_seed)
        for index, order in enumerate(sequence):
            for method, settings in variants:
                yield Training(method, settings, index, order, seed)


def run_regime(
    regime: Regime,
    store: Store,
    *,
    root: str | None = None,
    device: torch.device | str = "cpu",
    command: str = "",
    report: Callable[[int, int, Training], None] = lambda done, total, training: None,
) -> list[dict[str, Any]]:
    """All records of a map; those that lie finished in the store are read, not run again."""
    store.prepare()
    with store.lock(), one_thread():
        scenarios = Scenarios(BENCHMARK, KIND, regime.settings, root, str(device))
        everything = list(trainings(regime, len(scenarios[0])))
        finished, records = store.finished(), []
        for done, training in enumerate(everything):
            record = finished.get(training.name)
            if record is None:
                store.set_aside(training.name)
                report(done, len(everything), training)
                record = run_training(training, scenarios[training.seed], regime)
                record["command"] = command
                store.write_cell(training.name, record)
            _require_same(store, record, training, regime)
            records.append(record)
    return records


def estimate_regime(regime: Regime, store: Store, root: str | None, device: Any) -> str:
    """Trainings to compute, memory of the largest and time, as text. Writes nothing."""
    scenario = Scenarios(BENCHMARK, KIND, regime.settings, root, str(device))[0]
    wanted, finished = list(trainings(regime, len(scenario))), store.finished()
    missing = [training for training in wanted if training.name not in finished]
    each: dict[str, float] = {}
    with one_thread():
        for training in missing:
            if training.method not in each:
                each[training.method] = _seconds(training, scenario, regime)
    total = sum(each[training.method] for training in missing)
    network = find_benchmark(BENCHMARK).network(scenario, regime.settings)()
    held = 4 * max(regime.particles) * sum(p.numel() for p in network.parameters())
    return (
        f"{len(wanted)} trainings, {len(missing)} to compute\n"
        f"memory: {held / 2**20:.0f} MiB for the parameters of the particles; learning takes about "
        f"3 times that and activations\nestimated time: {span(total)}"
    )


def _seconds(training: Training, scenario: Scenario, regime: Regime) -> float:
    """Of a whole training, by two short ones: what a step takes, and what the rest does."""
    s, few, more = training.settings, 2, 6

    def took(steps: int) -> float:
        short = replace(training, settings=s.changed(iterations=steps))
        return float(run_training(short, scenario, regime)["duration"])

    start, longer = took(few), took(more)
    per_step = max(0.0, longer - start) / (more - few)
    samples = sum(len(scenario.targets(task)) for task in training.order) / len(training.order)
    steps = s.iterations or s.epochs * samples / s.batch_size
    return start + per_step * max(0.0, steps - few)


def _require_same(store: Store, record: dict[str, Any], training: Training, regime: Regime) -> None:
    ours = {**training.settings.flat(), "readings": _described(training, regime)}
    theirs = {**record["settings"], "readings": record["readings_wanted"]}
    for key, value in ours.items():
        # A setting that did not exist then had no effect.
        if theirs.get(key, value) != value:
            raise StoreError(
                f"{store.directory} holds {training.name} with {key}={theirs[key]}, not {value}: "
                "choose another --out"
            )


def _readings(training: Training, regime: Regime) -> list[Reading]:
    if training.method == "sgd":
        return sgd_readings(regime.particles, regime.loss_scales, regime.min_ess)
    return [Reading(training.method, n=_particles(training))]


def _particles(training: Training) -> int:
    s = training.settings
    return {"adam": 1, "rb": s.flat()["rb_particles"]}.get(training.method, s.particles)


def _described(training: Training, regime: Regime) -> list[dict[str, Any]]:
    return [dataclasses.asdict(reading) for reading in _readings(training, regime)]


def run_training(training: Training, scenario: Scenario, regime: Regime) -> dict[str, Any]:
    """Learn all tasks in order, then read."""
    begun = time.monotonic()
    network = find_benchmark(BENCHMARK).network(scenario, training.settings)
    setup = Setup(scenario, training.settings, network, training.seed)
    method = find_method({"sgd": "wpf"}.get(training.method, training.method))
    learner = method.build(setup)
    died_at = _learn(learner, training)
    start = method.build(setup).filter.particles
    moved = displacement(learner.filter.networks, start)
    filter, test_batch = learner.filter, training.settings.test_batch
    weights = filter.raw_log_weights if training.method == "sgd" else filter.log_weights
    readings = read(learner, weights, _readings(training, regime), moved, test_batch)
    return {
        "format": 1,
        "training": training.method,
        "rate": training.rate,
        "init": None if training.method == "rb" else training.settings.init,
        "order_index": training.order_index,
        "order": list(training.order),
        "seed": training.seed,
        "settings": training.settings.flat(),
        "readings_wanted": _described(training, regime),
        "readings": readings,
        "died_at": died_at,
        "alive": int(learner.filter.alive.sum()),
        "versions": versions(),
        "device": device_name(learner.filter.particles.device),
        "duration": time.monotonic() - begun,
    }


def _learn(learner: ContinualLearner, training: Training) -> int | None:
    """Returns the step at which no particle was left, if it came to that."""
    s, steps = training.settings, 0
    seed = s.seed_of_batches(training.seed)
    options: Any = {"batch_size": s.batch_size, "epochs": s.epochs, "iterations": s.iterations}
    try:
        for position, task in enumerate(training.order):
            learner.begin_task(training.order[: position + 1])
            for x, y in learner.scenario.batches(task, seed=seed, **options):
                learner.learn(x, y)
                steps += 1
            learner.check()
            learner.end_task()
    except FloatingPointError:
        return steps
    return None
