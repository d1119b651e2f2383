"""What studies share: tasks, orders, cells that their JSON has already, and the facts there."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import orderless as ol
from orderless_lab.runs.store import versions
from orderless_lab.suites import SplitMNIST
from orderless_lab.suites.scenario import Kind

Cell = dict[str, Any]


def orders(count: int, tasks: int) -> list[list[int]]:
    """The tasks as numbered, then in random orders."""
    generator = torch.Generator().manual_seed(0)
    shuffled = [torch.randperm(tasks, generator=generator).tolist() for _ in range(count - 1)]
    return [list(range(tasks)), *shuffled]


def mnist(kind: Kind, samples: int | None = None, validation: float = 0.0) -> list[ol.Task]:
    """SplitMNIST with inputs as float32 in [0, 1]; of each task a share of the samples."""
    split = SplitMNIST(kind, validation=validation)
    tasks = []
    for k, name in enumerate(split.task_names):
        x, y = split.train_set(k)
        count = len(y) if samples is None else samples // 5
        tasks.append(ol.Task(x[:count], y[:count], *split.test_set(k), name))
    return tasks


def grid(cells: list[Cell], name: str) -> np.ndarray:
    """The cells' scores of this name, `[seed, order, task]`, for `orderless.metrics`."""
    seeds = sorted({cell["seed"] for cell in cells})
    return np.array([[c[name] for c in cells if c["seed"] == seed] for seed in seeds])


def facts(device: str = "cpu") -> dict[str, Any]:
    """How the numbers were made; paths in the command lose their folders."""
    machine = f"{os.cpu_count()} cores of an {platform.machine().replace('_', '-')} server"
    if device != "cpu":
        machine = torch.cuda.get_device_name(device)
    arguments = [Path(a).name if a.startswith("/") else a for a in sys.argv[1:]]
    return {
        "command": " ".join(["python", f"lab/studies/{Path(sys.argv[0]).name}", *arguments]),
        "machine": machine,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": _commit(),
    }


def write(path: Path | None, results: dict[str, Any], device: str = "cpu") -> None:
    """Write the results and their facts as JSON; without a path, do nothing."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts(device), **results}, indent=1) + "\n")


class Cells:
    """The cells of a study: those in its JSON are known; a new one is printed and written at once.

    `rows` are all cells so far, which the JSON has under `name`.
    """

    def __init__(self, path: Path | None, name: str = "cells", device: str = "cpu") -> None:
        self.path = path
        self.name = name
        self.device = device
        self.rows: list[Cell] = []
        if path is not None and path.is_file():
            self.rows = json.loads(path.read_text())[name]

    def get(self, key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> Cell:
        """The cell with this key, computed if it is not known: `{**key, **compute()}`."""
        for row in self.rows:
            if all(row[name] == value for name, value in key.items()):
                return row
        row = {**key, **compute()}
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        write(self.path, {self.name: self.rows}, self.device)
        return row


def _commit() -> str:
    """The commit of the library that was imported."""
    folder = Path(ol.__file__).parent
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
