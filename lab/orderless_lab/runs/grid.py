"""Grids: the cells of an experiment, and `run_grid`, which computes those that are missing.

One cell of `orderless run`: `Grid.plan` takes the options, `run_grids` lists the missing cells and
passes them to `launch` or to Ray, which call `Job.compute`, here or in another process. The suite's
runner (`runner.py`) then learns the tasks and writes the record to the `Store`.
"""

from __future__ import annotations

import itertools
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from orderless.ensemble import find_device
from orderless.errors import UserError
from orderless.io import INVALID_STATE

from ..methods.exact import ExactSettings
from ..methods.registry import Method, find_method
from ..methods.settings import RunSettings
from ..suites.base import Suite
from ..suites.registry import find_suite
from .cell import Cell, Table
from .launch import Item, Job, Listener, available_memory, launch
from .ray import Ray
from .store import Store, StoreError

MOST_CELLS = 100_000  # of one grid
FIXED_BYTES = 2**29  # of torch and the data, in every process


@dataclass(frozen=True)
class Grid:
    """benchmark x methods x permutations x seeds."""

    benchmark: str
    variant: str
    preset: str
    methods: tuple[str, ...]
    permutations: int
    seeds: int
    settings: RunSettings

    def __post_init__(self) -> None:
        self.suite.check_variant(self.variant)
        if not self.methods:
            raise UserError(f"name at least one method: {', '.join(self.suite.family)}")
        for name in self.methods:
            self.suite.method(name)
        for what in ("permutations", "seeds"):
            if getattr(self, what) < 1:
                raise UserError(f"{what} must be at least 1, got {getattr(self, what)}")
        count = len(self.methods) * self.permutations * self.seeds
        if count > MOST_CELLS:
            raise UserError(
                f"at most {MOST_CELLS:,} cells at once, got {count:,}: ask for fewer orders or "
                "seeds"
            )

    @classmethod
    def plan(
        cls,
        benchmark: str,
        preset: str | None = None,
        *,
        methods: str | Sequence[str] = "all",
        variant: str | None = None,
        permutations: int | None = None,
        seeds: int | None = None,
        texts: Sequence[str] = (),
        **changes: Any,
    ) -> Grid:
        """A grid from a preset; `texts` are `key=value`, `changes` the same with Python's values.

        >>> grid = Grid.plan("splitmnist", "demo", methods="gd,wpf", permutations=2, lr=0.1)
        >>> len(grid.cells()), grid.settings.lr
        (4, 0.1)
        """
        suite = find_suite(benchmark)
        variant = suite.check_variant(variant or suite.variants[0])
        usual = suite.preset(preset, variant)
        settings = usual.settings.with_text(list(texts)).changed(**changes)
        if permutations is None:
            permutations = min(usual.orders, suite.most_orders(variant, settings))
        if isinstance(methods, str):
            methods = [name.strip() for name in methods.split(",") if name.strip()]
        if list(methods) == ["all"]:
            methods = suite.family
        names = tuple(dict.fromkeys(methods))
        if preset is None:
            preset = next(iter(suite.presets(variant)))
        count = usual.seeds if seeds is None else seeds
        grid = cls(benchmark, variant, preset, names, permutations, count, settings)
        for text in texts:
            if not grid.reads(text.partition("=")[0]):
                chosen = " or ".join(names)
                warnings.warn(f"{text} has no effect on {chosen}: nothing reads it", stacklevel=2)
        return grid

    @property
    def suite(self) -> Suite:
        return find_suite(self.benchmark)

    @property
    def table(self) -> Table:
        return self.benchmark, self.variant, self.preset

    def reads(self, key: str) -> bool:
        """Whether any of the methods reads a setting."""
        return any(key in self.settings.keys_of(self.suite.method(name)) for name in self.methods)

    def command(self) -> str:
        """The command that computes this grid, without directory, device and workers.

        It names every setting that is not the suite's default, or that the preset changes: a preset
        that is changed later does not change what the command means.
        """
        usual = type(self.settings)().flat()
        presets = self.suite.presets(self.variant)
        preset = presets[self.preset].settings.flat() if self.preset in presets else usual
        words = ["orderless", "run", self.benchmark, "--preset", self.preset]
        words += [f"--{self.suite.variant_name}", self.variant]
        words += ["--methods", ",".join(self.methods)]
        words += ["--permutations", str(self.permutations), "--seeds", str(self.seeds)]
        read = set().union(*(self.settings.flat(self.suite.method(m)) for m in self.methods))
        for key, value in self.settings.flat().items():
            if key in read and (value != usual[key] or value != preset[key]):
                words += ["--set", f"{key}={value}"]
        return shlex.join(words)

    def cells(self) -> list[Cell]:
        """The cells by seed, order and method, so that all methods advance together."""
        tasks = self.suite.outline(self.variant, self.settings).tasks
        orders = enumerate(self.suite.orders(tasks, self.permutations, self.settings))
        wanted = itertools.product(range(self.seeds), orders, self.methods)
        return [
            Cell(*self.table, name, index, order, seed, self.settings)
            for seed, (index, order), name in wanted
        ]

    def differs(self, record: Any) -> str | None:
        """What contradicts this grid in a record of none of its cells, another rate for example."""
        table = (record["benchmark"], record["variant"], record["preset"])
        if table != self.table or record["method"] not in self.suite.family:
            return None
        return self.settings.differs(record["settings"], self.suite.method(record["method"]))

    # ---------------------------------------------------------------------- memory

    def parameters(self) -> int:
        """The number of parameters of one network."""
        shapes = self.suite.outline(self.variant, self.settings)
        with torch.device("meta"):  # shapes without values
            network = self.suite.network(shapes, self.settings)()
        return sum(parameter.numel() for parameter in network.parameters())

    def networks_bytes(self, method: Method) -> int:
        """Bytes of what a method learns: its networks, or the sums of its exact heads."""
        if method.settings is ExactSettings:
            return self.settings.own(ExactSettings).bytes_held()
        return 4 * self.parameters() * (self.settings.particles if method.particles else 1)

    def bytes_needed(self, method: Method) -> int:
        """Approximate bytes of a process: gradients, a consolidation's copies, activations."""
        factor = 1 if method.settings is ExactSettings else 8
        return factor * self.networks_bytes(method) + FIXED_BYTES

    def items(self, store: Store, plugins: Sequence[str] = ()) -> list[Item]:
        """The cells, with what a process needs to compute them."""
        command = " ".join([self.command(), *(f"--plugin {name}" for name in plugins)])
        needed = {name: self.bytes_needed(self.suite.method(name)) for name in self.methods}
        return [Item(cell, store.directory, command, needed[cell.method]) for cell in self.cells()]


def run_grid(grid: Grid, store: Store, **options: Any) -> int:
    """Compute the missing cells of one grid, see `run_grids`."""
    return run_grids([(grid, store)], **options)


def run_grids(
    grids: Sequence[tuple[Grid, Store]],
    *,
    root: str | None = None,
    device: torch.device | str = "cpu",
    workers: int | None = 1,
    ray: Ray | None = None,
    shard: tuple[int, int] = (1, 1),
    checkpoint_every: float = 60.0,
    listener: Listener | None = None,
    deterministic: bool = False,
    plugins: tuple[str, ...] = (),
) -> int:
    """Compute the missing cells of grids; returns how many were computed.

    Args:
        workers: number of processes; None: as many as cores, GPUs and memory allow.
        ray: compute cells as Ray tasks instead.
        shard: (k, n) computes the k-th of n parts of the cells.
        checkpoint_every: seconds between the checkpoints of a cell.
        deterministic: use deterministic kernels on a GPU, which are slower.
        plugins: modules that register methods; every process imports them.
    """
    if workers is not None and workers < 1:
        raise UserError(f"workers must be at least 1, got {workers}")
    if ray is None:
        find_device(device)
    listener = listener or Listener()
    job = Job(root, str(device), checkpoint_every, deterministic, plugins)
    here = job if ray is None else replace(job, device="cpu")
    missing: list[Item] = []
    total = 0
    for grid, store in grids:
        grid.suite.release()
        items = grid.items(store, plugins)[shard[0] - 1 :: shard[1]]
        total += len(items)
        if ray is None and here.device == "cpu":
            refuse_too_large(grid, items)
        left = _prepared(grid, store, items, here, listener.say)
        missing += left
    if workers != 1:  # those that take longest first
        missing.sort(key=lambda item: not find_method(item.cell.method).slow)
    listener.begin(total - len(missing), total)
    computed = 0
    finished = (
        launch(missing, job, listener, workers)
        if ray is None
        else ray.launch(missing, job, listener)
    )
    for item, record, warned in finished:
        for message in warned:
            warnings.warn(message, stacklevel=2)
        if record is None:
            listener.say(f"{item.cell.title} is computed by another run")
        else:
            computed += 1
            listener.done(item.cell, record)
    return computed


def _prepared(
    grid: Grid, store: Store, items: Sequence[Item], job: Job, say: Callable[[str], None]
) -> list[Item]:
    """The unfinished items, once their directory and their tasks are ready."""
    unfinished = _unfinished(grid, store, items)
    tasks = None
    if unfinished:  # before anything is written: the data may be missing
        cell = unfinished[0].cell
        tasks = grid.suite.tasks(cell.variant, cell.settings, cell.seed, job.root, job.device)
    store.prepare()
    names = {item.cell.name for item in unfinished}
    for item in items:
        # an earlier run may have been killed after writing a cell, before tidying up
        store.tidy(item.cell.name, finished=item.cell.name not in names)
    if tasks is not None:
        grid.suite.prepare(tasks, say)
    return unfinished


def _unfinished(grid: Grid, store: Store, items: Sequence[Item]) -> list[Item]:
    """Items without a readable record; raises `StoreError` for records of another grid."""
    expected = {cell.name: cell for cell in grid.cells()}
    finished = store.finished()
    for name, record in finished.items():
        try:
            problem = _refused(grid, record, expected.get(name))
        except INVALID_STATE as error:  # intact, but not written by this package
            raise StoreError(
                f"{store.cell_path(name)} makes no sense ({error!r}): delete it"
            ) from None
        if problem is not None:
            raise StoreError(f"{store.directory} holds {name} {problem}: choose another --out")
    return [item for item in items if item.cell.name not in finished]


def _refused(grid: Grid, record: Any, cell: Cell | None) -> str | None:
    """Why a finished record is not of this grid, or not of its cell; None if it is."""
    other = (grid if cell is None else cell).differs(record)
    if other is not None:
        return f"with {other}"
    digest = grid.suite.digest(grid.variant, grid.settings)
    if cell is not None and digest is not None and record["data"] != digest:
        return "of other data"
    return None


def refuse_too_large(grid: Grid, items: Sequence[Item]) -> None:
    """Raise if what a method learns exceeds the memory; drawing it would take long before."""
    for name in dict.fromkeys(item.cell.method for item in items):
        held = grid.networks_bytes(grid.suite.method(name))
        if held > available_memory():
            raise UserError(
                f"{name} needs {held / 2**30:.0f} GiB for what it learns, and there are "
                f"{available_memory() / 2**30:.0f} GiB here: use fewer --particles or a smaller "
                "network"
            )


def count_cells(grid: Grid, store: Store) -> str:
    """How many cells a grid has, how many are finished, and the bytes of the networks of one."""
    items = grid.items(store)
    missing = _unfinished(grid, store, items)
    methods = [grid.suite.method(name) for name in grid.methods]
    largest = max(methods, key=grid.networks_bytes)
    return (
        f"{len(items)} cells, {len(items) - len(missing)} finished, {len(missing)} to compute; "
        f"at most {grid.networks_bytes(largest) / 2**20:.0f} MiB for what a cell learns "
        f"({largest.name})"
    )
