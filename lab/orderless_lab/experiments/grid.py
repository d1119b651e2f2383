"""Grids: the cells of an experiment, and `run_grid`, which computes those that are missing.

One cell of `orderless run`: `plan` (plan.py) makes the `Grid`, `run_grid` lists its cells,
`run_cells` (engine.py) passes the missing ones to a launcher (launch/), which calls
`GridWork.compute`, here or in another process. A runner (runner.py; supervised.py, policy.py) then
learns the tasks and writes the record to the `Store` (store.py).
"""

import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from orderless.ensemble import find_device

from ..methods import METHODS, find_method
from ..methods.config import Range
from ..methods.plugins import load_plugins
from ..methods.presets import POLICY_PRESETS, PRESETS, usual_grid
from ..methods.settings import SharedSettings
from .benchmarks import Scenarios, find_benchmark
from .cell import Cell
from .engine import Report, Tick, refuse_too_many, run_cells, unfinished
from .launch import local
from .launch.local import Processes, machine_memory
from .launch.ray import Ray
from .policy import CloningRunner, LifelongRunner
from .record import CellRecord, Table
from .runner import CellRunner
from .store import Store
from .supervised import SupervisedRunner

RUNNERS: dict[str, type[CellRunner]] = {
    "supervised": SupervisedRunner,
    "cloning": CloningRunner,
    "lifelong": LifelongRunner,
}


def runner_of(cell: Cell, tasks: Any, store: Store, **options: Any) -> CellRunner:
    """The runner of a cell, by its kind."""
    return RUNNERS[cell.kind](cell, tasks, store, **options)


@dataclass(frozen=True)
class Grid:
    """benchmark x methods x permutations x seeds."""

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
            Range(1).refuse(what, getattr(self, what))
        refuse_too_many(len(self.methods) * self.permutations * self.seeds)
        if self.scenario not in benchmark.scenarios:
            what = "scenario" if benchmark.kind == "supervised" else "game"
            among = " or ".join(", ".join(benchmark.scenarios).rsplit(", ", 1))
            raise ValueError(f"{what} must be {among}, got {self.scenario!r}")

    def command(self) -> str:
        """The command that computes this grid, without directory, device and workers."""
        supervised = find_benchmark(self.benchmark).kind == "supervised"
        usual: SharedSettings = type(self.settings)()
        if self.preset in (PRESETS if supervised else POLICY_PRESETS):
            usual, _ = usual_grid(self.preset, self.benchmark, self.scenario)
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
        """The cells by seed, order and method, so that all methods advance together."""
        orders = enumerate(self.settings.sequences(tasks, self.permutations))
        wanted = itertools.product(range(self.seeds), orders, self.methods)
        for seed, (index, order), name in wanted:
            yield Cell(*self.table, name, index, order, seed, self.settings)

    def asks_for(self, record: CellRecord) -> bool:
        """Whether a record is of a cell of this grid."""
        small = record.order_index < self.permutations and record.seed < self.seeds
        return record.table == self.table and record.method in self.methods and small

    @property
    def table(self) -> Table:
        return self.benchmark, self.scenario, self.preset

    def differs(self, record: Any) -> str | None:
        """What contradicts this grid in a record of none of its cells, another rate for example."""
        table = tuple(record[key] for key in ("benchmark", "scenario", "preset"))
        method = METHODS.get(record["method"]) if table == self.table else None
        return None if method is None else self.settings.differs(record["settings"], method)


@dataclass(frozen=True)
class GridWork:
    """How the cells of a grid are computed."""

    grid: Grid
    scenarios: Scenarios
    here: Scenarios  # the same in the process that launches: with Ray, on its own device
    command: str = ""
    checkpoint_every: float = 60.0
    deterministic: bool = False
    plugins: tuple[str, ...] = ()

    def refuse(self, directory: Path, name: str, record: Any, cell: Any) -> str | None:
        if "method" not in record:
            return f"{directory} holds an audit, not an experiment: choose another --out"
        other = (self.grid if cell is None else cell).differs(record)
        problem = other and f"with {other}"
        if problem is None and cell is not None:
            digest = getattr(self.here[0], "digest", None)  # a user's tasks are those of any seed
            problem = None if record.get("data") == digest else "of other data"
        return problem and f"{directory} holds {name} {problem}: choose another --out"

    def prepare(self, say: Callable[[str], None]) -> None:
        find_benchmark(self.grid.benchmark).prepare(self.here[0], say)

    def compute(self, cell: Cell, store: Store, tick: Tick) -> CellRecord:
        load_plugins(self.plugins)
        with local.deterministic(self.deterministic):
            options: Any = {"checkpoint_every": self.checkpoint_every, "tick": tick}
            runner = runner_of(cell, self.scenarios[cell.seed], store, **options)
            return runner.run(self.command)

    @property
    def device(self) -> torch.device:
        return torch.device(self.scenarios.device)

    def memory(self) -> int:
        # gradients, a consolidation's copies, activations; and half a GiB for torch and the data
        return 8 * self.held() + 2**29

    def held(self) -> int:
        """Bytes of all particles' parameters."""
        settings = self.grid.settings
        with torch.device("meta"):  # shapes without values
            network = find_benchmark(self.grid.benchmark).network(self.here[0], settings)()
        return 4 * settings.particles * sum(p.numel() for p in network.parameters())

    def refuse_too_large(self, cells: Iterable[Cell]) -> None:
        """Raise if the particles exceed the memory; drawing them would take long before it does."""
        methods = {find_method(cell.method) for cell in cells}
        many = any(each.particles and "particles" not in each.ignores for each in methods)
        if many and self.device.type == "cpu" and self.held() > machine_memory():
            raise ValueError(
                f"{self.grid.settings.particles} particles need {self.held() / 2**30:.0f} GiB, and "
                f"this machine has {machine_memory() / 2**30:.0f}: use fewer --particles or a "
                "smaller network"
            )


def run_grid(
    grid: Grid,
    store: Store,
    *,
    root: str | None = None,
    device: torch.device | str = "cpu",
    workers: int | None = 1,
    ray: Ray | None = None,
    checkpoint_every: float = 60.0,
    report: Report | None = None,
    deterministic: bool = False,
    plugins: tuple[str, ...] = (),
) -> int:
    """Compute the missing cells of a grid; returns how many were computed.

    Args:
        workers: number of processes; None: as many as cores and memory allow.
        ray: compute cells as Ray tasks instead.
        checkpoint_every: seconds between the checkpoints of a cell.
        deterministic: use deterministic kernels on a GPU, which are slower.
        plugins: modules that register methods; every process imports them.
    """
    command = " ".join([grid.command(), *(f"--plugin {name}" for name in plugins)])
    Range(1).refuse("workers", 1 if workers is None else workers)
    if ray is None:
        find_device(device)
    where = Scenarios(grid.benchmark, grid.scenario, grid.settings, root, str(device))
    here = where if ray is None else replace(where, device="cpu")
    options = checkpoint_every, deterministic, plugins
    work = GridWork(grid, where, here, command, *options)
    cells: list[Cell] = list(grid.cells(len(here[0])))
    if ray is None:
        work.refuse_too_large(cells)
    return run_cells(cells, work, store, ray or Processes(workers), report or Report())


def count_cells(grid: Grid, store: Store, root: str | None) -> str:
    """How many cells a grid has, how many are finished, and the bytes of the networks of one."""
    tasks = Scenarios(grid.benchmark, grid.scenario, grid.settings, root, "cpu")
    work = GridWork(grid, tasks, tasks)
    cells = list(grid.cells(len(tasks[0])))
    missing = unfinished(cells, work, store)
    return (
        f"{len(cells)} cells, {len(cells) - len(missing)} finished, {len(missing)} to compute; "
        f"at most {work.held() / 2**20:.0f} MiB for the parameters of a cell's networks"
    )
