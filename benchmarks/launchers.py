"""The same cells one after another, in processes, and as Ray tasks: cells per minute of each.

    python benchmarks/launchers.py [--workers 2] [--cells 12] [--iterations 400]

Ray is started before the measurement. The first cells of each way, which import torch and load the
data in every worker, are not counted. Ray's workers run at niceness 15: use an idle machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

import torch

from orderless_lab.runs import Grid, Store, run_grid
from orderless_lab.runs.launch import Listener
from orderless_lab.runs.ray import Ray, import_ray
from timing import machine, print_table


def cells_per_minute(grid: Grid, skip: int, **options: object) -> float:
    """Cells per minute from the time at which `skip` cells are finished."""
    moments: list[float] = []
    listener = Listener(done=lambda cell, record: moments.append(time.perf_counter()))
    with tempfile.TemporaryDirectory() as folder:
        run_grid(grid, Store(folder), listener=listener, **options)  # type: ignore[arg-type]
    return 60 * (len(moments) - skip) / (moments[-1] - moments[skip - 1])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--cells", type=int, default=12)
    arguments.add_argument("--iterations", type=int, default=400)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    cells = {"permutations": options.cells, "seeds": 1}
    grid = Grid.plan("splitmnist", "demo", methods="wpf", iterations=options.iterations, **cells)
    ray = import_ray()
    ray.init("local", num_cpus=options.workers, include_dashboard=False, log_to_driver=False)
    several = options.workers
    ways: dict[str, Callable[[], float]] = {
        "1 process": lambda: cells_per_minute(grid, 1, workers=1),
        f"{several} processes": lambda: cells_per_minute(grid, several, workers=several),
        "1 Ray worker": lambda: cells_per_minute(grid, 1, ray=Ray(at_once=1)),
        f"{several} Ray workers": lambda: cells_per_minute(grid, several, ray=Ray()),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):  # they alternate, so that other load affects all of them alike
        for name, way in ways.items():
            found[name].append(way())
    rates = {name: sorted(rates)[len(rates) // 2] for name, rates in found.items()}
    place = machine(torch.device("cpu"))
    print(
        f"SplitMNIST demo, wpf, {options.cells} cells of {5 * options.iterations} steps; {place}\n"
    )
    rows = [[n, f"{r:.1f}", f"{r / rates['1 process']:.2f}x"] for n, r in rates.items()]
    print_table(["way", "cells per minute", "against 1 process"], rows)


if __name__ == "__main__":
    main()
