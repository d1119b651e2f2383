"""A benchmark that takes milliseconds: three tasks of different lengths, images of stripes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from orderless_lab.experiments import Cell, Grid, Store, run_grid
from orderless_lab.experiments.benchmarks import BENCHMARKS, Benchmark, mnist_network
from orderless_lab.experiments.engine import Report
from orderless_lab.experiments.supervised import SupervisedRunner
from orderless_lab.methods.settings import Settings
from orderless_lab.scenarios import Scenario, Task
from orderless_lab.storage.typed import as_json

SIZES = 24, 48, 34  # training samples: 3, 6 and 4 batches of 8
STEPS = 3, 6, 4
SETTINGS = Settings(
    hidden=6,
    batch_size=8,
    particles=3,
    lr=0.05,
    fisher_samples=10,
    ewc_strength=1.0,
    si_strength=0.1,
    replay_buffer=12,
    test_batch=12,
    rb_map="relu",
    rb_features=16,
    rb_particles=2,
)


def tiny_scenario(kind: str = "domain", tasks: int = 3) -> Scenario:
    generator = torch.Generator().manual_seed(0)

    def samples(count: int, task: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % 2
        x = 0.5 * torch.randn(count, 1, 14, 14, generator=generator)
        x[torch.arange(count), 0, 5 * task + 3 * y] += 1.0  # a bright row says the class
        return x, y

    made = [Task(*samples(SIZES[t], t), *samples(20, t), name=f"t{t}") for t in range(tasks)]
    return Scenario(made, kind=kind)  # type: ignore[arg-type]


def _scenario(kind: str, settings: Settings, seed: int, root: str | None, device: str) -> Scenario:
    return tiny_scenario(kind)


BENCHMARKS["tiny"] = Benchmark("tiny", "stripes", _scenario, mnist_network)


def tiny_cell(
    method: str = "gd",
    order: tuple[int, ...] = (0, 1, 2),
    seed: int = 0,
    scenario: str = "domain",
    index: int = 0,
    **changes: Any,
) -> Cell:
    settings = SETTINGS.changed(**changes)
    return Cell("tiny", scenario, "demo", method, index, order, seed, settings)


def make_run(cell: Cell, folder: Path, **options: Any) -> SupervisedRunner:
    store = Store(folder)
    store.prepare()
    tasks = tiny_scenario(cell.scenario, len(cell.order))
    return SupervisedRunner(cell, tasks, store, **options)


def result_of(cell: Cell, folder: Path, **options: Any) -> dict[str, Any]:
    """The cell's record."""
    return as_json(make_run(cell, folder, **options).run("the command"))


def tiny_grid(methods: tuple[str, ...] = ("gd",), permutations: int = 2, **changes: Any) -> Grid:
    settings = SETTINGS.changed(**changes)
    return Grid("tiny", "domain", "demo", methods, permutations, 1, settings)


def run_into(folder: str, methods: tuple[str, ...], permutations: int, **options: Any) -> None:
    """For other processes."""
    torch.set_num_threads(1)
    run_grid(tiny_grid(methods, permutations), Store(folder), **options)


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    record = as_json(record)
    del record["duration"]
    return record


def stop_after(limit: int) -> Report:
    """Raises what Ctrl-C does once more than `limit` steps are done."""
    taken = 0

    def tick(steps: int) -> None:
        nonlocal taken
        taken += steps
        if taken > limit:
            raise KeyboardInterrupt

    return Report(tick=tick)
