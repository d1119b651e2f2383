"""All cells of an experiment, one after another; only those that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..methods import find_method
from ..scenarios import orders
from ..settings import Settings
from .benchmarks import find_benchmark
from .cell import Cell, CellRun
from .scenarios import Scenarios
from .store import Store, StoreError
from .workers import run_in_processes


@dataclass(frozen=True)
class Grid:
    """benchmark x methods x permutations x seeds."""

    benchmark: str
    scenario: str
    preset: str
    methods: tuple[str, ...]
    permutations: int
    seeds: int
    settings: Settings

    def __post_init__(self) -> None:
        find_benchmark(self.benchmark)
        for name in self.methods:
            find_method(name)
        for what in ("permutations", "seeds"):
            if getattr(self, what) < 1:
                raise ValueError(f"{what} must be at least 1, got {getattr(self, what)}")
        if self.scenario not in ("domain", "task", "class"):
            raise ValueError(f"scenario must be domain, task or class, got {self.scenario!r}")

    def scenarios(self, root: str | None, device: torch.device | str) -> Scenarios:
        return Scenarios(self.benchmark, self.scenario, self.settings, root, str(device))

    def cells(self, tasks: int) -> Iterator[Cell]:
        """Seeds outside, methods inside: after a while every method has some cells."""
        sequence = orders(tasks, self.permutations, self.settings.order_seed)
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


@dataclass
class Report:
    """What a run tells while it goes on; the command line draws it."""

    begin: Callable[[int, int], None] = lambda finished, total: None
    start: Callable[[Cell], None] = lambda cell: None
    tick: Callable[[int], None] = lambda steps: None
    done: Callable[[Cell, dict[str, Any]], None] = lambda cell, record: None


def run_grid(
    grid: Grid,
    store: Store,
    *,
    root: str | None = None,
    device: torch.device | str = "cpu",
    workers: int = 1,
    checkpoint_every: float = 60.0,
    command: str = "",
    report: Report | None = None,
) -> int:
    """Compute the missing cells of a grid; returns how many were computed."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    report = report or Report()
    store.prepare()
    scenarios = grid.scenarios(root, device)
    with store.lock():
        cells = list(grid.cells(len(scenarios[0])))
        missing = [cell for cell in cells if not _is_finished(store, cell)]
        report.begin(len(cells) - len(missing), len(cells))
        options: dict[str, Any] = {"checkpoint_every": checkpoint_every}
        if workers > 1:
            shared = {"run": options, "command": command}
            for cell, record in run_in_processes(missing, scenarios, store, workers, shared):
                report.done(cell, record)
            return len(missing)
        for cell in missing:
            report.start(cell)
            run = CellRun(cell, scenarios[cell.seed], store, tick=report.tick, **options)
            report.done(cell, run.run(command))
    return len(missing)


def _is_finished(store: Store, cell: Cell) -> bool:
    record = store.finished(cell.name)
    if record is None:
        return False
    ours = cell.describe()["settings"]
    theirs = {**ours, **record["settings"]}
    different = sorted(key for key in ours if ours[key] != theirs[key])
    if different or record["order"] != list(cell.order):
        key = different[0] if different else "order"
        old = record["settings"].get(key, record["order"])
        raise StoreError(
            f"{store.directory} holds {cell.name} with {key}={old}, not "
            f"{ours.get(key, list(cell.order))}: choose another --out"
        )
    return True
