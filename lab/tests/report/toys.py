"""Synthetic cells in the form the experiment harness writes them."""

import base64
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from orderless_lab.runs import Store
from orderless_lab.runs.cell import CellRecord
from orderless_lab.runs.store import as_json

TASKS = 5
# method -> (mean accuracy, effect of the order, effect of the seed)
LEVELS = {
    "wpf": (0.72, 0.03, 0.01),
    "averaging": (0.66, 0.03, 0.003),
    "bootstrap": (0.51, 0.002, 0.004),
    "gd": (0.64, 0.03, 0.05),
    "ewc": (0.66, 0.05, 0.04),
    "ewc+wpf": (0.74, 0.02, 0.01),
    "lwf": (0.70, 0.06, 0.03),
    "lwf+wpf": (0.79, 0.03, 0.01),
    "si": (0.62, 0.05, 0.04),
    "si+wpf": (0.69, 0.05, 0.01),
    "product": (0.97, 0.0, 0.002),
}


def make_cell(method: str, order_index: int, seed: int, **changes: Any) -> dict[str, Any]:
    """One finished cell; the same arguments always give the same numbers."""
    mean, order_effect, seed_effect = LEVELS.get(method, (0.6, 0.03, 0.02))
    orders = np.random.default_rng(order_index)
    order = [int(task) for task in orders.permutation(TASKS)]
    # Orders move every method the same way, as bad orders do; seeds move each method by itself.
    shift = order_effect * orders.normal(size=TASKS)
    shift = shift + seed_effect * np.random.default_rng([seed, len(method), ord(method[0])]).normal(
        size=TASKS
    )
    matrix = np.full((TASKS + 1, TASKS), 0.5)
    for place, task in enumerate(order, start=1):
        matrix[place:, task] = np.linspace(0.98, mean, TASKS + 1 - place)
    matrix[-1] = np.clip(mean + shift, 0, 1)
    labels = np.random.default_rng([seed, order_index]).integers(0, 2, size=(TASKS, 40))
    cell = {
        "benchmark": "splitmnist",
        "variant": "domain",
        "preset": "table1",
        "method": method,
        "order_index": order_index,
        "order": order,
        "seed": seed,
        "task_names": ["0v1", "2v3", "4v5", "6v7", "8v9"],
        "particles": 100,
        "settings": {"lr": 0.001, "batch": 128},
        "scores": {
            "particles": matrix.tolist(),
            "logits": (matrix * 0.9).tolist(),
            "probs": (matrix * 0.8).tolist(),
        },
        "nll": [0.3] * TASKS,
        "ece": [0.1] * TASKS,
        "predictions": [
            base64.b64encode(row.astype(np.uint8).tobytes()).decode() for row in labels
        ],
        "trace": {"step": [0, 1], "ess": [100.0, 5.0 + seed], "largest_weight": [0.01, 0.5]},
        "log_evidence": -100.0 - seed,
        "temperature": 1.0,
        "alive": 100,
        "plasticity": {"dormant": [0.1 * (seed + 1)] * TASKS},
        "versions": {"orderless": "0.1.0", "numpy": "2.4.6"},
        "device": "cpu",
        "duration": 1.5,
        "command": "orderless run splitmnist --preset table1",
    }
    return cell | changes


def make_cells(*methods: str, orders: int = 1, seeds: int = 1, **changes: Any) -> list[Any]:
    """Of every method in these orders from these seeds."""
    places = itertools.product(methods, range(orders), range(seeds))
    return [make_cell(*place, **changes) for place in places]


def constant(level: float, untrained: float | None = None) -> dict[str, Any]:
    """The scores of a cell that knows as much of every task at any time."""
    matrix = np.full((TASKS + 1, TASKS), level)
    matrix[0] = level if untrained is None else untrained
    return {"particles": matrix.tolist()}


def write_run(directory: Path, cells: list[dict[str, Any]]) -> Path:
    """A run directory of these cells, as `orderless run` writes it."""
    store = Store(directory)
    store.prepare()
    for number, cell in enumerate(cells):
        store.write_cell(f"{number:04d}", CellRecord.model_validate(as_json(cell)))
    return directory
