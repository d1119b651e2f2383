"""The map of when weighting helps: learning rate x initialisation x number of particles.

There is one training run per (learning rate, initialisation, order, seed) with the largest number
of particles. Filters that differ in their weights only are evaluated on it (`readings.py`). Adam,
the exact filter (`rb`) and the Gaussian-sum filter (`gsf`) are trained separately. The data is
SplitMNIST, domain.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from orderless_lab.storage.typed import Json

from ..methods.config import Range
from ..methods.settings import Settings
from ..methods.supervised import ExactSettings
from .engine import Report, refuse_too_many
from .grid import run_grid
from .readings import Training, sgd_readings
from .record import Reading
from .store import Store

TASKS = 5  # of SplitMNIST


@dataclass(frozen=True)
class Regime:
    """A grid whose cells differ in their settings."""

    benchmark: ClassVar[str] = "splitmnist"
    scenario: ClassVar[str] = "domain"
    what: ClassVar[str] = "trainings"
    foreign: ClassVar[tuple[str, str]] = "training", "no map"

    settings: Settings  # data, network and batches
    rates: tuple[float, ...]  # learning rates of SGD and of Adam
    particles: tuple[int, ...]  # values of N; the largest is trained
    loss_scales: tuple[float, ...]  # factors on the loss in the weights, besides 1
    gsf_variances: tuple[float, ...]  # the Gaussian-sum filter's sigma^2
    gsf_particles: int
    seeds: int
    permutations: int = 5
    inits: tuple[str, ...] = ("fresh", "perturb")
    min_ess: tuple[float, ...] = (0.1, 0.5)  # least effective sample sizes, as shares of N

    def __post_init__(self) -> None:
        for name in ("permutations", "seeds", "gsf_particles"):
            Range(1).refuse(name, getattr(self, name))
        Range(1).refuse("particles", min(self.particles))
        if any(not 0 < share <= 1 for share in self.min_ess):
            raise ValueError(f"min_ess must be shares of N between 0 and 1, got {self.min_ess}")
        refuse_too_many(len(self.variants()) * self.permutations * self.seeds)

    def variants(self) -> list[Training]:
        """The trainings of one order and seed."""
        s, most = self.settings, max(self.particles)

        def training(method: str, n: int, settings: Settings) -> Training:
            readings = [Reading(method, n)]
            if method == "wpf":
                readings = sgd_readings(self.particles, self.loss_scales, self.min_ess)
            table = self.benchmark, self.scenario, "regime"
            return Training(*table, method, 0, (), 0, settings, tuple(readings))

        found = [training("rb", s.of(ExactSettings).rb_particles, s)]
        for init in self.inits:
            base = s.changed(init=init, particles=most)
            found += [training("wpf", most, base.changed(lr=rate)) for rate in self.rates]
            found += [training("adam", 1, base.changed(adam_lr=rate)) for rate in self.rates]
        n = self.gsf_particles
        each = (s.changed(particles=n, gsf_sigma2=sigma2) for sigma2 in self.gsf_variances)
        return found + [training("gsf", n, settings) for settings in each]

    def cells(self, tasks: int) -> Iterator[Training]:
        """The trainings by seed and order, so that the whole map fills evenly."""
        orders = enumerate(self.settings.sequences(tasks, self.permutations))
        wanted = itertools.product(range(self.seeds), orders, self.variants())
        for seed, (index, order), each in wanted:
            yield replace(each, order_index=index, order=order, seed=seed)

    def differs(self, record: Any) -> None:
        """Trainings of a larger map may be there, too."""


REGIMES = {
    "demo": Regime(
        Settings(source="embedded", hidden=100, batch_size=8, rb_map="relu", rb_features=512),
        rates=(1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 1e-1),
        particles=(5, 20),
        loss_scales=(0.1, 8.0),
        gsf_variances=(1e-5, 1e-4, 3e-4, 1e-3),
        gsf_particles=8,
        seeds=2,
    ),
    "full": Regime(
        Settings(precision="tf32", rb_map="relu"),
        rates=(1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1),
        particles=(10, 100),
        loss_scales=(0.1, 128.0),
        gsf_variances=(1e-5, 1e-4, 3e-4, 1e-3, 1e-2),
        gsf_particles=10,
        seeds=3,
    ),
}


def find_regime(name: str) -> Regime:
    if name not in REGIMES:
        raise ValueError(f"unknown preset {name!r} of the map: choose from {', '.join(REGIMES)}")
    return REGIMES[name]


def run_regime(
    regime: Regime,
    store: Store,
    *,
    root: str | None = None,
    device: torch.device | str = "cpu",
    command: str = "",
    report: Report | None = None,
) -> list[dict[str, Json]]:
    """Compute the missing trainings of a map; returns the records of all."""
    run_grid(regime, store, root=root, device=device, command=command, report=report)
    records = store.finished()
    return [records[cell.name] for cell in regime.cells(TASKS)]
