"""What the fault bench shares: how many faults, from which seed, and what must be left in the end.

`ORDERLESS_FAULTS=200 ORDERLESS_FAULTS_SEED=7` injects more, and others.
"""

import json
import os
import random
from pathlib import Path

from lab.tests.toys import compute, without_time

from orderless import io as storage
from orderless_lab.report import format_table, summarize
from orderless_lab.runs import Store
from orderless_lab.runs.store import read_cell

FAULTS = int(os.environ.get("ORDERLESS_FAULTS", "30"))
SEED = int(os.environ.get("ORDERLESS_FAULTS_SEED", "0"))

METHODS = ("wpf", "ewc+wpf", "si", "lwf+wpf", "er", "joint", "bootstrap", "adam")
TIMES = {"duration", "seconds_per_step"}


def randomness(test: str) -> random.Random:
    """Of one test: what happens is the same again with the same seed."""
    return random.Random(f"{SEED} {test}")


def everything(folder: Path):
    """All that a run leaves behind, durations aside: cells, snapshots, and the report's table."""
    store = Store(folder)
    cells = {name: without_time(record) for name, record in store.finished().items()}
    assert left(store, "checkpoints") == {} and list(store.directory.glob("*/.*.part")) == []
    report = json.loads(format_table(summarize(store.directory), "json"))
    return cells, left(store, "snapshots"), without(report, TIMES)


def left(store: Store, folder: str) -> dict[str, bytes]:
    """Files by name, without those that were set aside."""
    paths = (store.directory / folder).iterdir()
    return {path.name: path.read_bytes() for path in paths if path.suffix != ".damaged"}


def without(value, keys):
    if isinstance(value, dict):
        return {k: without(v, keys) for k, v in value.items() if k not in keys}
    return [without(v, keys) for v in value] if isinstance(value, list) else value


def assert_nothing_is_torn(folder: Path) -> None:
    """Whatever has its final name is whole."""
    for path in folder.glob("cells/*.json"):
        read_cell(path)
    for path in folder.glob("*/*.st"):
        storage.load(path)


def undisturbed(folder: Path, methods: tuple[str, ...] = METHODS):
    compute(Store(folder), *methods)
    return everything(folder)
