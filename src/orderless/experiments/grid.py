"""Grids: the cells of an experiment, and how the missing ones are computed."""

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from ..methods import METHODS, find_method
from ..methods.plugins import load_plugins
from ..methods.presets import PRESETS, usual_grid
from ..methods.settings import Settings, SharedSettings
from ..particles import find_device
from .benchmarks import Scenarios, find_benchmark
from .cell import Cell, Part
from .engine import Report, Tick, refuse_too_many, run_cells
from .launch import local
from .launch.apart import TasksApart
from .launch.local import Processes, machine_memory
from .launch.ranks import SharedStore
from .launch.ray import Ray
from .policy import CloningRunner, LifelongRunner
from .readings import TrainingRunner
from .record import CellRecord, Table
from .runner import CellRunner
from .store import Store
from .supervised import SupervisedRunner, TaskRunner
from .tensorboard import summary_writer

RUNNERS: dict[str, type[Any]] = {
    "supervised": SupervisedRunner,
    "task": TaskRunner,
    "cloning": CloningRunner,
    "lifelong": LifelongRunner,
    "regime": TrainingRunner,
}


def runner_of(cell: Cell, tasks: Any, store: Store, **options: Any) -> CellRunner:
    """The runner of a cell, by its kind."""
    return RUNNERS[cell.kind](cell, tasks, store, **options)


@dataclass(frozen=True)
class Grid:
    """benchmark x methods x permutations x seeds."""

    what: ClassVar[str] = "cells"

    benchmark: str
    scenario: str
    preset: str
    methods: tuple[str, ...]
    permutations: int
    seeds: int
    settings: SharedSettings

    def __post_init__(self) -> None:
        benchmark = find_benchmark(self.benchmark)
        if not self.methods:
            known = [each.name for each in METHODS.values() if each.kind == benchmark.kind]
            raise ValueError(f"name at least one method: {', '.join(known)}")
        for name in self.methods:
            method = find_method(name, benchmark.kind)
            method.check(self.settings.of(method.config))
        for what in ("permutations", "seeds"):
            if getattr(self, what) < 1:
                raise ValueError(f"{what} must be at least 1, got {getattr(self, what)}")
        refuse_too_many(len(self.methods) * self.permutations * self.seeds)
        if self.scenario not in benchmark.scenarios:
            what = "scenario" if benchmark.kind == "supervised" else "game"
            among = " or ".join(", ".join(benchmark.scenarios).rsplit(", ", 1))
            raise ValueError(f"{what} must be {among}, got {self.scenario!r}")

    def command(self) -> str:
        """The command that computes this, wherever to, on whatever and by however many workers."""
        supervised = find_benchmark(self.benchmark).kind == "supervised"
        known = not supervised or self.preset in PRESETS
        usual = usual_grid(self.preset, self.benchmark, self.scenario)[0] if known else Settings()
        words = ["orderless", "run", self.benchmark, "--preset", self.preset]
        words += ["--scenario" if supervised else "--game", self.scenario]
        words += ["--methods", ",".join(self.methods)]
        words += ["--permutations", str(self.permutations), "--seeds", str(self.seeds)]
        preset = usual.flat()
        for key, value in self.settings.flat().items():
            if value != preset[key]:
                words += ["--set", f"{key}={value}"]
        return shlex.join(words)

    def cells(self, tasks: int) -> Iterator[Cell]:
        """Seeds outside, methods inside: after a while every method has some cells."""
        sequence = self.settings.sequences(tasks, self.permutations)
        for seed in range(self.seeds):
            for index, order in enumerate(sequence):
                for name in self.methods:
                    yield Cell(*self.table, name, index, order, seed, self.settings)

    def asks_for(self, record: CellRecord) -> bool:
        """Whether a finished cell is one of these."""
        small = record.order_index < self.permutations and record.seed < self.seeds
        return record.table == self.table and record.method in self.methods and small

    @property
    def table(self) -> Table:
        return self.benchmark, self.scenario, self.preset

    def refuse(self, directory: Path, name: str, record: Any, cell: Cell | None) -> str | None:
        """Why a finished cell does not belong here; a table with two learning rates misleads."""
        if "method" not in record:
            return f"{directory} holds an audit or a map, not an experiment: choose another --out"
        if cell is not None:
            other = cell.differs(record)
        else:
            table = tuple(record[key] for key in ("benchmark", "scenario", "preset"))
            method = METHODS.get(record["method"]) if table == self.table else None
            other = None if method is None else self.settings.differs(record["settings"], method)
        return other and f"{directory} holds {name} with {other}: choose another --out"


@dataclass(frozen=True)
class GridWork:
    """How the cells of a grid are computed."""

    grid: Any  # a `Grid`, or what is like one
    scenarios: Scenarios
    here: Scenarios  # the same where the work is shared out: Ray's machines may have other devices
    command: str = ""
    checkpoint_every: float = 60.0
    tensorboard: bool = False
    deterministic: bool = False
    plugins: tuple[str, ...] = ()

    def refuse(self, directory: Path, name: str, record: Any, cell: Cell | None) -> str | None:
        reason: str | None = self.grid.refuse(directory, name, record, cell)
        if reason is None and cell is not None:
            digest = getattr(self.here[0], "digest", None)  # a user's tasks are those of any seed
            if record.get("data") != digest:
                return f"{directory} holds {name} of other data: choose another --out"
        return reason

    def prepare(self, say: Callable[[str], None]) -> None:
        find_benchmark(self.grid.benchmark).prepare(self.here[0], say)

    def compute(self, cell: Cell, store: Store, tick: Tick) -> CellRecord | None:
        load_plugins(self.plugins)
        with local.deterministic(self.deterministic):
            options: Any = {"checkpoint_every": self.checkpoint_every, "tick": tick}
            runner = runner_of(cell, self.scenarios[cell.seed], store, **options)
            whole = not isinstance(cell, Part)
            return runner.run(self.command, tensorboard=self.tensorboard and whole)

    @property
    def device(self) -> torch.device:
        return torch.device(self.scenarios.device)

    def memory(self) -> int:
        # gradients, the teacher or importances of a consolidation, activations; torch and the data
        return 8 * self.held() + 2**29

    def held(self) -> int:
        """Bytes of all particles' parameters."""
        settings = self.grid.settings
        with torch.device("meta"):  # sizes, and no network
            network = find_benchmark(self.grid.benchmark).network(self.here[0], settings)()
        return 4 * settings.particles * sum(p.numel() for p in network.parameters())

    def refuse_too_large(self, cells: Iterable[Cell]) -> None:
        """Networks are drawn one after another: it would take long until memory is out."""
        methods = {find_method(cell.method) for cell in cells}
        many = any(each.particles and "particles" not in each.ignores for each in methods)
        if many and self.device.type == "cpu" and self.held() > machine_memory():
            raise ValueError(
                f"{self.grid.settings.particles} particles need {self.held() / 2**30:.0f} GiB, and "
                f"this machine has {machine_memory() / 2**30:.0f}: use fewer --particles or a "
                "smaller network"
            )


def run_grid(
    grid: Any,
    store: Store,
    *,
    root: str | None = None,
    device: torch.device | str = "cpu",
    workers: int | None = 1,
    ray: Ray | None = None,
    checkpoint_every: float = 60.0,
    report: Report | None = None,
    group: Any = None,
    tensorboard: bool = False,
    deterministic: bool = False,
    plugins: tuple[str, ...] = (),
    command: str | None = None,
) -> int:
    """Compute the missing cells of a grid; returns how many were computed.

    Args:
        grid: a `Grid`, or a `Regime`.
        workers: processes; None: as many as there are cores and memory for.
        ray: compute cells as Ray tasks instead, on whatever machines it has.
        checkpoint_every: seconds between checkpoints of the cell that is being computed.
        group: a process group whose ranks all call this and compute each cell together.
        tensorboard: write scalars of the cells that are computed to DIR/tensorboard.
        deterministic: the same bits again on a GPU, too, at some cost in speed.
        plugins: modules that register methods, which other processes must import, too.
        command: what is recorded as the command; None: the one that makes this grid.
    """
    if command is None:
        command = " ".join([grid.command(), *(f"--plugin {name}" for name in plugins)])
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if group is not None:
        if find_benchmark(grid.benchmark).kind != "supervised":
            raise ValueError(f"{grid.benchmark} is for one process: leave out torchrun")
        store, workers = SharedStore(store.directory, group), 1
    if tensorboard:
        summary_writer()  # says what is missing before anything is computed
    if ray is None:
        find_device(device)
    where = Scenarios(grid.benchmark, grid.scenario, grid.settings, root, str(device))
    here = where if ray is None else replace(where, device="cpu")
    options = checkpoint_every, tensorboard, deterministic, plugins
    work = GridWork(grid, where, here, command, *options)
    cells = list(grid.cells(len(here[0])))
    if ray is None and group is None:
        work.refuse_too_large(cells)
    launcher = TasksApart(ray or Processes(workers))
    return run_cells(cells, work, store, launcher, report or Report())
