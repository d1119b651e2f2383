"""The records of finished cells: `Store.write_cell` writes one, `load_run` reads all of a run."""

import base64
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from orderless_lab.storage.typed import Misfit, Setting, decode, optional

from ..methods.registry import Description
from ..text import file_name
from .store import StoreError, read_cell

COLOUR, MARKERS = re.compile("#[0-9A-Fa-f]{6}"), set("o^v<>sDdpPXhH8*")
Row = list[float | None]  # null: not finite, or not measured
Table = tuple[str, str, str]  # (benchmark, scenario, preset)


@dataclass(frozen=True)
class Measured:
    """The mean return of some episodes."""

    mean: float
    standard_error: float
    episodes: int | None = optional()


@dataclass(frozen=True, kw_only=True)
class ExpertFacts:
    """The expert of behaviour cloning. `returns`: levels -> policy -> mean return."""

    game: str | None = optional()
    levels: int
    network: str
    seed: int | None = optional()
    envs: int | None = optional()
    rollout: int | None = optional()
    precision: str | None = optional()
    steps: int
    earlier: list[object] | None = optional()
    returns: dict[str, dict[str, Measured]]
    digest: str = ""
    level_returns: Row = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """The result of one method in one order from one seed.

    `scores`: combination of particles -> R `[T + 1, T]`, the score on each task before the first
    task and after every task; always has `accuracy`. `trace`, `curves`: a list per quantity,
    including `step`. `plasticity`: a number per task learned. `predictions`: labels on each task's
    test set, bytes in base64. `died_at`: the step after which no particle was finite. `described`:
    the method, for reports where it is not registered. `data`: a checksum of a user's own tasks.
    """

    format: int = 1
    benchmark: str
    scenario: str = "domain"
    preset: str = "none"
    method: str
    order_index: int
    order: list[int]
    seed: int
    settings: dict[str, Setting] = field(default_factory=dict)
    described: Description | None = optional()
    data: str | None = optional()
    particles: int | None = None
    log_evidence: float | None = None
    temperature: float | None = None
    ess: float | None = optional()
    moved: float | None = optional()
    alive: int | None = None
    device: str | None = None
    task_names: list[str] | None = None
    scores: dict[str, list[Row]]
    trace: dict[str, Row] = field(default_factory=dict)
    plasticity: dict[str, Row] = field(default_factory=dict)
    nll: Row | None = optional()
    ece: Row | None = optional()
    predictions: list[str] | None = optional()
    score_kind: Literal["accuracy", "return"] = "accuracy"
    curves: dict[str, Row] | None = optional()
    final_returns: Row | None = optional()
    expert: ExpertFacts | None = optional()
    scoring_duration: float | None = optional()
    died_at: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    duration: float = 0.0
    command: str = ""

    @property
    def table(self) -> Table:
        return self.benchmark, self.scenario, self.preset

    @property
    def identity(self) -> tuple[str, str, str, str, int, int]:
        """Unique for every cell; the sort key of cells."""
        return *self.table, self.method, self.order_index, self.seed

    @property
    def name(self) -> str:
        return cell_name(self.table, self.method, self.order_index, self.seed)

    def matrix(self, combine: str = "accuracy") -> NDArray[np.float64] | None:
        """R `[T + 1, T]` with NaN for null; None if the cell has none."""
        rows = self.scores.get(combine)
        return np.array(rows, dtype=np.float64) if rows else None

    def final(self, combine: str = "accuracy") -> NDArray[np.float64] | None:
        """The last row of R, `[T]`; None if it is incomplete."""
        matrix = self.matrix(combine)
        return None if matrix is None or not np.isfinite(matrix[-1]).all() else matrix[-1]

    def last(self, quantity: str) -> float | None:
        """The last value of a trace."""
        values = self.trace.get(quantity)
        return values[-1] if values else None

    def labels(self) -> list[NDArray[np.uint8]] | None:
        """Predicted labels on each task's test set; None if the cell has none."""
        if not self.predictions:
            return None
        texts = (base64.b64decode(text, validate=True) for text in self.predictions)
        return [np.frombuffer(text, np.uint8) for text in texts]


def cell_name(table: Table, method: str, order_index: int, seed: int) -> str:
    """The file name of a cell, its checkpoints and its snapshots."""
    return file_name(f"{'-'.join(table)}-{method}-order{order_index}-seed{seed}")


@dataclass(frozen=True)
class Run:
    """All finished cells of a run directory, sorted by `CellRecord.identity`."""

    directory: Path
    cells: tuple[CellRecord, ...]

    def tables(self) -> dict[Table, list[CellRecord]]:
        """The cells by (benchmark, scenario, preset)."""
        groups = itertools.groupby(self.cells, lambda cell: cell.table)
        return {table: list(cells) for table, cells in groups}


def load_run(
    directory: str | Path,
    *,
    read: Callable[[Path], object] = read_cell,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """Read and check all files of `directory/cells`; a `StoreError` names the file and the problem.

    `read` parses one file; `tell` is called with (files read, all files).
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise StoreError(f"{directory} is not a directory.")
    paths = sorted((directory / "cells").glob("*.json"))
    cells = []
    for done, path in enumerate(paths):
        tell(done, len(paths))
        try:
            content = read(path)
        except (OSError, ValueError) as error:
            where = "" if str(path) in str(error) else f"{path} cannot be read: "
            raise StoreError(f"{where}{error}.") from error
        cells.append(_checked(content, path))
    if not cells:
        raise StoreError(f"{directory} holds no finished cells; run `orderless run` into it first.")
    cells.sort(key=lambda cell: cell.identity)
    _refuse_contradictions(directory, cells)
    return Run(directory, tuple(cells))


def _checked(content: object, path: Path) -> CellRecord:
    if isinstance(content, dict) and "learner" in content and "method" not in content:
        raise StoreError(
            f"{path} is a run of an audit: `orderless audit` with the same --out writes its report."
        )
    try:
        cell = decode(CellRecord, content)
        _refuse_senseless(cell)
    except Misfit as misfit:
        what = f"{misfit} is missing or makes no sense" if misfit.path else "it is no record"
        raise StoreError(f"{path} is not a cell of an experiment: {what}.") from None
    tasks = len(cell.order)
    shape = f"of shape [{tasks + 1}, {tasks}]"
    for name, rows in cell.scores.items():
        if len(rows) != tasks + 1 or any(len(row) != tasks for row in rows):
            raise StoreError(f"{path} must hold scores.{name} {shape}.")
    if cell.final() is None:
        raise StoreError(f"{path} must hold scores.accuracy {shape} with a finite last row.")
    return cell


def _refuse_senseless(cell: CellRecord) -> None:
    """Raise `Misfit` for what types do not check."""
    if not cell.order or sorted(cell.order) != list(range(len(cell.order))):
        raise Misfit("order")
    if cell.task_names and len(cell.task_names) != len(cell.order):
        raise Misfit("task_names")
    style = cell.described.style if cell.described else None
    if style and not (COLOUR.fullmatch(style.colour) and style.marker in MARKERS):
        raise Misfit("described", "style")
    try:
        cell.labels()
    except ValueError:
        raise Misfit("predictions") from None


def _refuse_contradictions(directory: Path, cells: Iterable[CellRecord]) -> None:
    orders: dict[tuple[Table, int], list[int]] = {}
    for earlier, later in itertools.pairwise(cells):
        if earlier.identity == later.identity:
            raise StoreError(
                f"Two cells in {directory} hold {later.method}, order {later.order_index}, "
                f"seed {later.seed} of {' '.join(later.table)}; keep one of them."
            )
    for cell in cells:
        known = orders.setdefault((cell.table, cell.order_index), cell.order)
        if known != cell.order:
            raise StoreError(
                f"Order {cell.order_index} is {known} in one cell and {cell.order} in another; "
                "cells of different experiments cannot share a directory."
            )
