"""From the records of runs to the tables of a report: the only file of it that reads records.

A `Table` holds the rows of one benchmark and variant, a `Row` the cells of one method. `Row.frame`
has one line per cell and task, for the largest complete block of seeds x orders.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orderless.errors import UserError

from ..methods import METHODS, Description
from ..paper import SINGLE
from ..runs.cell import CellRecord
from ..runs.frame import Run, load_run, tidy
from ..runs.store import StoreError

Array = NDArray[np.float64]
EXHAUSTIVE = 12  # seeds or orders up to which every subset is tried


class ReportError(UserError):
    """A report cannot be made; the message tells the user why in one sentence."""


def load(
    source: Run | str | Path, tell: Callable[[int, int], None] = lambda done, total: None
) -> Run:
    """The run, read from its directory if necessary; raises `ReportError` if it is not valid."""
    if isinstance(source, Run):
        return source
    try:
        return load_run(source, tell=tell)
    except StoreError as error:
        raise ReportError(str(error)) from error


def measured(cell: CellRecord) -> pd.DataFrame:
    """The tidy table of a cell with what only reports need."""
    ess = cell.last("ess") if cell.ess is None else cell.ess
    return tidy(cell).assign(ess=ess, labels=cell.labels())


def matrix_of(cell: CellRecord) -> Array:
    """R [T + 1, T]: the score on each task before the first task and after every task."""
    matrix = cell.matrix()
    assert matrix is not None  # a record without it is not read
    return matrix


@dataclass(frozen=True, eq=False)
class Row:
    """The finished cells of one method."""

    method: Description
    cells: list[CellRecord]

    @cached_property
    def places(self) -> dict[tuple[int, int], CellRecord]:
        """Seed and index of the order -> cell."""
        return {(cell.seed, cell.order_index): cell for cell in self.cells}

    @cached_property
    def _sides(self) -> tuple[list[int], list[int]]:
        """The seeds and the orders of the largest complete block."""
        return complete_block(self.places)

    @cached_property
    def block(self) -> list[CellRecord]:
        """The cells of the largest complete block, seed by seed."""
        return [self.places[place] for place in itertools.product(self.seeds, self.orders)]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The block, one line per cell and task."""
        return pd.concat([measured(cell) for cell in self.block], ignore_index=True)

    @property
    def seeds(self) -> list[int]:
        return self._sides[0]

    @property
    def orders(self) -> list[int]:
        return self._sides[1]

    @property
    def died(self) -> int:
        """The number of cells in which no particle kept a finite loss."""
        return sum(cell.died_at is not None for cell in self.cells)

    @property
    def returns(self) -> bool:
        """Whether scores are returns of games and not accuracies."""
        return self.cells[0].unit == "return"

    @property
    def scores(self) -> Array:
        """S[seed, order, task] after the last task."""
        values = self.frame["score"].to_numpy()
        return values.reshape(len(self.seeds), len(self.orders), -1)

    def mean(self, column: str) -> float:
        """The mean of a column; NaN if a value is missing, as a part of the runs would mislead."""
        return float(self.frame[column].astype(np.float64).mean(skipna=False))

    def beside(self, other: "Row") -> "tuple[Row, Row]":
        """Both rows on their common seeds and orders alone."""
        seeds, orders = complete_block(self.places.keys() & other.places.keys())
        places = list(itertools.product(seeds, orders))
        mine = Row(self.method, [self.places[place] for place in places])
        return mine, Row(other.method, [other.places[place] for place in places])


@dataclass(frozen=True, eq=False)
class Table:
    """All rows of one benchmark and variant."""

    benchmark: str
    variant: str
    preset: str
    rows: dict[str, Row]

    @property
    def cells(self) -> list[CellRecord]:
        return [cell for row in self.rows.values() for cell in row.cells]

    @property
    def returns(self) -> bool:
        return next(iter(self.rows.values())).returns

    @property
    def task_names(self) -> list[str]:
        first = self.cells[0]
        return first.task_names or [f"task {task}" for task in range(len(first.order))]

    def label(self, name: str) -> str:
        """The name of a method for readers, also of one that has no row."""
        if name in self.rows:
            return self.rows[name].method.label
        return METHODS[name].label if name in METHODS else name

    def rival(self, name: str) -> str | None:
        """The row of the same method without weights, of the same run if the runs differ: its
        base, or the plain single network."""
        method = self.rows[name].method
        of_run = name.removeprefix(method.name)  # " (RUN)", or nothing
        bases = (method.base,) if method.base else SINGLE
        candidates = [base + suffix for base in bases for suffix in (of_run, "")]
        return next((rival for rival in candidates if rival in self.rows), None)


def shared_settings(cells: Iterable[CellRecord]) -> dict[str, Any]:
    """The settings that are equal in all of these cells."""
    first, *others = [cell.settings for cell in cells]
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }


def tables(runs: Sequence[Run]) -> list[Table]:
    """The tables of a run, by benchmark, variant and preset; of several runs whatever the preset.

    A method that is not the same in several runs has one row per run, `METHOD (RUN)`.
    """
    names = [run.directory.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.directory) for run in runs]
    grouped: dict[tuple[str, ...], dict[str, dict[str, list[CellRecord]]]] = {}
    for name, run in zip(names, runs, strict=True):
        for cell in run.cells:
            key = cell.table if len(runs) == 1 else cell.table[:2]
            by_method = grouped.setdefault(key, {}).setdefault(cell.method, {})
            by_method.setdefault(name, []).append(cell)
    return [_table(by_method) for by_method in grouped.values()]


def _table(by_method: dict[str, dict[str, list[CellRecord]]]) -> Table:
    """The table of method -> run -> cells."""
    rows = {}
    for name in sorted(by_method, key=_table_order):
        of_runs = {run: Row(_described(cells), cells) for run, cells in by_method[name].items()}
        kinds = [(row.method, shared_settings(row.cells)) for row in of_runs.values()]
        if all(kind == kinds[0] for kind in kinds):
            places: dict[tuple[int, int], CellRecord] = {}
            for row in of_runs.values():
                places |= row.places
            rows[name] = Row(kinds[0][0], list(places.values()))
        else:
            for run, row in of_runs.items():
                label = f"{row.method.label} ({run})"
                rows[f"{name} ({run})"] = Row(replace(row.method, label=label), row.cells)
    cells = [cell for row in rows.values() for cell in row.cells]
    _refuse_contradictions(cells)
    presets = dict.fromkeys(cell.preset for cell in cells)
    return Table(cells[0].benchmark, cells[0].variant, ", ".join(presets), rows)


def _refuse_contradictions(cells: list[CellRecord]) -> None:
    """Raise `ReportError` if an order means two things, as in cells of different experiments."""
    orders: dict[int, list[int]] = {}
    for cell in cells:
        known = orders.setdefault(cell.order_index, cell.order)
        if known != cell.order or len(known) != len(cells[0].order):
            raise ReportError(
                f"Order {cell.order_index} of {cell.method} is {cell.order}, where others have "
                f"{known} or {len(cells[0].order)} tasks: cells of different experiments cannot "
                "share a table."
            )


def _described(cells: list[CellRecord]) -> Description:
    """The method of these cells: registered, as their records describe it, or its name alone."""
    name = cells[0].method
    recorded = next((cell.described for cell in cells if cell.described), Description(name))
    method = METHODS[name].described() if name in METHODS else recorded
    return method if method.label else replace(method, label=name)


def _table_order(name: str) -> tuple[int, str]:
    """Sort key: registered methods in their order, then all others by name."""
    known = list(METHODS)
    return (known.index(name) if name in METHODS else len(known), name)


def complete_block(places: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The seeds and orders of the largest complete block among finished (seed, order) places.

    Every subset of the seeds, or of the orders if these are fewer, is tried if they are at most
    `EXHAUSTIVE`; if not, they join one by one, the fullest first. Ties go to more orders.
    """
    by_seed: dict[int, set[int]] = {}
    by_order: dict[int, set[int]] = {}
    for seed, order in places:
        by_seed.setdefault(seed, set()).add(order)
        by_order.setdefault(order, set()).add(seed)
    seeds_chosen = len(by_seed) <= len(by_order)
    partners = by_seed if seeds_chosen else by_order
    fullest = sorted(partners, key=lambda member: (-len(partners[member]), member))
    subsets: list[Sequence[int]] = []
    for size in range(1, len(fullest) + 1):
        few = len(fullest) <= EXHAUSTIVE
        subsets += itertools.combinations(fullest, size) if few else [fullest[:size]]
    blocks = []
    for chosen in subsets:
        common = set.intersection(*(partners[member] for member in chosen))
        sides = (sorted(chosen), sorted(common))
        blocks.append(sides if seeds_chosen else sides[::-1])
    return max(blocks, key=lambda sides: (len(sides[0]) * len(sides[1]), len(sides[1])),
               default=([], []))  # fmt: skip
