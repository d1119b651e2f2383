"""All cells of an experiment, one after another; only those that are missing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..methods import METHODS, find_method
from ..methods.presets import PRESETS, find_policy_preset, find_preset
from ..methods.settings import Settings, SharedSettings
from ..storage import INVALID_STATE
from .benchmarks import find_benchmark
from .course import Cell
from .determinism import deterministic as repeatable
from .launch.local import automatic_workers, one_thread, run_in_processes
from .launch.ranks import SharedStore
from .launch.ray import Ray, run_on_ray
from .runs import course_of
from .scenarios import Scenarios
from .store import Store, StoreError
from .tensorboard import summary_writer


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
            if getattr(self, what) < 1:
                raise ValueError(f"{what} must be at least 1, got {getattr(self, what)}")
        if self.scenario not in benchmark.scenarios:
            what = "scenario" if benchmark.kind == "supervised" else "game"
            *others, last = benchmark.scenarios
            among = f"{', '.join(others)} or {last}"
            raise ValueError(f"{what} must be {among}, got {self.scenario!r}")

    def command(self) -> str:
        """The command that computes this, wherever to, on whatever and by however many workers."""
        supervised = find_benchmark(self.benchmark).kind == "supervised"
        usual: SharedSettings = (
            (find_preset(self.preset, self.benchmark) if self.preset in PRESETS else Settings())
            if supervised
            else find_policy_preset(self.preset, self.scenario)
        )
        words = ["orderless", "run", self.benchmark, "--preset", self.preset]
        words += ["--scenario" if supervised else "--game", self.scenario]
        words += ["--methods", ",".join(self.methods)]
        words += ["--permutations", str(self.permutations), "--seeds", str(self.seeds)]
        preset = usual.flat()
        for key, value in self.settings.flat().items():
            if value != preset[key]:
                words += ["--set", f"{key}={value}"]
        return shlex.join(words)

    def scenarios(self, root: str | None, device: torch.device | str) -> Scenarios:
        return Scenarios(self.benchmark, self.scenario, self.settings, root, str(device))

    def cells(self, tasks: int) -> Iterator[Cell]:
        """Seeds outside, methods inside: after a while every method has some cells."""
        sequence = self.settings.sequences(tasks, self.permutations)
        for seed in range(self.seeds):
            for index, order in enumerate(sequence):
                for name in self.methods:
                    yield Cell(
                        self.benchmark,
                        self.scenario,
                        self.preset,
                        name,
                        index,
                        order,
                        seed,
                        self.settings,
                    )

    def asks_for(self, record: dict[str, Any]) -> bool:
        """Whether a finished cell is one of these."""
        table = self.benchmark, self.scenario, self.preset
        return (
            tuple(record[key] for key in ("benchmark", "scenario", "preset")) == table
            and record["method"] in self.methods
            and record["order_index"] < self.permutations
            and record["seed"] < self.seeds
        )


@dataclass
class Report:
    """What a run tells while it goes on; the command line draws it."""

    begin: Callable[[int, int], None] = lambda finished, total: None
    start: Callable[[Cell], None] = lambda cell: None
    tick: Callable[[int], None] = lambda steps: None
    done: Callable[[Cell, dict[str, Any]], None] = lambda cell, record: None
    say: Callable[[str], None] = lambda text: None


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
    group: Any = None,
    tensorboard: bool = False,
    deterministic: bool = False,
) -> int:
    """Compute the missing cells of a grid; returns how many were computed.

    Args:
        workers: processes; None: as many as there are cores and memory for.
        ray: compute cells as Ray tasks instead, on whatever machines it has.
        checkpoint_every: seconds between checkpoints of the cell that is being computed.
        group: a process group whose ranks all call this and compute each cell together.
        tensorboard: write scalars of the cells that are computed to DIR/tensorboard.
        deterministic: the same bits again on a GPU, too, at some cost in speed.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if group is not None:
        if find_benchmark(grid.benchmark).kind != "supervised":
            raise ValueError(f"{grid.benchmark} is for one process: leave out torchrun")
        store, workers = SharedStore(store.directory, group), 1
    if tensorboard:
        summary_writer()  # says what is missing before anything is computed
    report = report or Report()
    scenarios = grid.scenarios(root, device if ray is None else "cpu")
    cells = list(grid.cells(len(scenarios[0])))
    store.prepare()
    with store.lock() as mark:
        missing = unfinished(cells, store)
        waiting = {cell.name for cell in missing}
        for cell in cells:
            # an earlier run may have been killed between writing a cell and tidying up
            (store.set_aside if cell.name in waiting else store.drop_checkpoints)(cell.name)
        if missing:
            find_benchmark(grid.benchmark).prepare(scenarios[0], report.say)
        report.begin(len(cells) - len(missing), len(cells))
        options: dict[str, Any] = {"checkpoint_every": checkpoint_every}
        shared = {"run": options, "command": grid.command(), "tensorboard": tensorboard}
        shared["deterministic"] = deterministic
        if ray is not None:
            there, memory = grid.scenarios(root, device), memory_of_a_cell(grid, scenarios)
            for cell, record in run_on_ray(
                missing, there, store, mark, shared, ray, memory=memory, tick=report.tick
            ):
                report.done(cell, record)
            return len(missing)
        workers = min(workers or processes(grid, scenarios, len(missing)), max(1, len(missing)))
        if workers > 1:
            for cell, record in run_in_processes(
                missing, scenarios, store, workers, shared, report.tick
            ):
                report.done(cell, record)
            return len(missing)
        with one_thread(), repeatable(deterministic):
            for cell in missing:
                report.start(cell)
                run = course_of(cell, scenarios[cell.seed], store, tick=report.tick, **options)
                report.done(cell, run.run(grid.command(), tensorboard=tensorboard))
    return len(missing)


def processes(grid: Grid, scenarios: Scenarios, cells: int) -> int:
    """How many to use where nobody says."""
    return automatic_workers(cells, scenarios[0].device, memory_of_a_cell(grid, scenarios))


def memory_of_a_cell(grid: Grid, scenarios: Scenarios) -> int:
    """Bytes, roughly."""
    network = find_benchmark(grid.benchmark).network(scenarios[0], grid.settings)()
    held = 4 * grid.settings.particles * sum(p.numel() for p in network.parameters())
    # gradients, the teacher or importances of a consolidation, activations; torch and the data
    return 8 * held + 2**29


def unfinished(cells: list[Cell], store: Store) -> list[Cell]:
    """Cells without a readable result; a directory that holds other settings is refused."""
    records, table = store.finished(), cells[0].describe()
    expected = {cell.name: cell.describe() for cell in cells}
    for name, record in records.items():
        try:
            _refuse_others(record, table, cells[0].settings, f"{store.directory} holds {name}")
            _refuse_strangers(record, expected.get(name, {}), f"{store.cell_path(name)}")
        except INVALID_STATE as error:  # whole, but nothing that was ever written here
            raise StoreError(
                f"{store.cell_path(name)} makes no sense ({error!r}): delete it"
            ) from None
    return [cell for cell in cells if cell.name not in records]


TABLE = ("benchmark", "scenario", "preset")
IDENTITY = (*TABLE, "method", "order_index", "seed")


def _refuse_others(
    record: dict[str, Any], table: dict[str, Any], settings: SharedSettings, what: str
) -> None:
    """A table whose rows have other settings would mislead."""
    if all(record.get(key) == table[key] for key in TABLE) and record["method"] in METHODS:
        ours = settings.flat(METHODS[record["method"]])
        for key in settings.differing(record["settings"], METHODS[record["method"]]):
            theirs = record["settings"][key]
            raise StoreError(f"{what} with {key}={theirs}, not {ours[key]}: choose another --out")


def _refuse_strangers(record: dict[str, Any], expected: dict[str, Any], path: str) -> None:
    """A file under the name of one of our cells must hold that cell."""
    for key in IDENTITY if expected else ():
        if record[key] != expected[key]:
            raise StoreError(
                f"{path} holds {key}={record[key]}, not {expected[key]}: it was put there from "
                "another run; delete it, and the same command computes it"
            )
    order = record["order"]
    if order != expected.get("order", order):
        raise StoreError(f"{path} has order={order}, not {expected['order']}: choose another --out")
