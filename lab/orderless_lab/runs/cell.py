"""A cell of a grid: one method, one order of the tasks, one seed; and the record of its result."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from ..methods.registry import Description, find_method
from ..methods.settings import RunSettings
from ..text import file_name

Table = tuple[str, str, str]  # (benchmark, variant, preset)

COLOUR = re.compile("#[0-9A-Fa-f]{6}")
MARKERS = set("o^v<>sDdpPXhH8*")
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63, strict=True)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Row = list[Finite | None]  # null: not finite, or not measured


@dataclass(frozen=True)
class Cell:
    """Benchmark, method, order, seed and settings: all that a result depends on."""

    benchmark: str
    variant: str  # the scenario or the game, see `Suite`
    preset: str
    method: str
    order_index: int
    order: tuple[int, ...]
    seed: int
    settings: RunSettings

    @property
    def title(self) -> str:
        return f"{self.variant}: {self.method} order {self.order_index} seed {self.seed}"

    @property
    def name(self) -> str:
        table = (self.benchmark, self.variant, self.preset)
        return cell_name(table, self.method, self.order_index, self.seed)

    def describe(self) -> dict[str, Any]:
        """The fields of its record that describe the cell."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        flat = self.settings.flat(find_method(self.method))
        return {**found, "order": list(self.order), "settings": flat}

    def differs(self, record: Mapping[str, Any]) -> str | None:
        """The first difference to a record, "key=its value, not ours"; None if there is none."""
        for key, value in self.describe().items():
            if key != "settings" and record.get(key) != value:
                return f"{key}={record.get(key)}, not {value}"
        return self.settings.differs(record["settings"], find_method(self.method))


def cell_name(table: Table, method: str, order_index: int, seed: int) -> str:
    """The file name of a cell, its checkpoints and its snapshots."""
    return file_name(f"{'-'.join(table)}-{method}-order{order_index}-seed{seed}")


class Recorded(BaseModel):
    """What is read from JSON: values are of their types, keys that nobody knows are ignored."""

    model_config = ConfigDict(frozen=True)


class ExpertFacts(Recorded):
    """The expert of behaviour cloning: a checksum, its mean return on each level of the cell, and
    whatever its file says of how it was trained."""

    model_config = ConfigDict(extra="allow")

    digest: str = ""
    level_returns: Row = []


class CellRecord(Recorded):
    """The result of one method in one order from one seed.

    `scores`: combination of particles -> R `[T + 1, T]`, the score on each task before the first
    task and after every task; always has `particles`, the mean of the particles' own scores by
    weight. `unit`: of the scores. `trace`, `curves`: a list per quantity, including `step`.
    `plasticity`: a number per task learned. `predictions`: labels on each task's test set, bytes in
    base64. `died_at`: the step after which no particle was finite. `described`: the method, for
    reports where it is not registered. `data`: a checksum of a user's own tasks, or of what was
    cloned.
    """

    benchmark: str
    variant: str = "domain"
    preset: str = "none"
    method: str
    order_index: Whole
    order: list[Whole]
    seed: Whole
    settings: dict[str, StrictBool | Whole | Finite | str | None] = {}
    described: Description | None = None
    data: str | None = None
    particles: Whole | None = None
    log_evidence: Finite | None = None
    temperature: Finite | None = None
    ess: Finite | None = None
    moved: Finite | None = None
    alive: Whole | None = None
    device: str | None = None
    task_names: list[str] | None = None
    unit: Literal["accuracy", "return"] = "accuracy"
    scores: dict[str, list[Row]]
    trace: dict[str, Row] = {}
    plasticity: dict[str, Row] = {}
    nll: Row | None = None
    ece: Row | None = None
    predictions: list[str] | None = None
    curves: dict[str, Row] | None = None
    final_returns: Row | None = None
    expert: ExpertFacts | None = None
    scoring_duration: Finite | None = None
    died_at: Whole | None = None
    versions: dict[str, str] = {}
    duration: Finite = 0.0
    command: str = ""

    @model_validator(mode="after")
    def _check(self) -> CellRecord:
        tasks = len(self.order)
        if not tasks or sorted(self.order) != list(range(tasks)):
            raise ValueError("order is no order of the tasks")
        if self.task_names and len(self.task_names) != tasks:
            raise ValueError("task_names must be one per task")
        style = self.described.style if self.described else None
        if style and not (COLOUR.fullmatch(style.colour) and style.marker in MARKERS):
            raise ValueError("described.style is no colour and marker")
        for name, rows in self.scores.items():
            if len(rows) != tasks + 1 or any(len(row) != tasks for row in rows):
                raise ValueError(f"scores.{name} must be of shape [{tasks + 1}, {tasks}]")
        if self.final() is None:
            raise ValueError("scores.particles must have a finite last row")
        try:
            self.labels()
        except ValueError:
            raise ValueError("predictions are no bytes in base64") from None
        return self

    @property
    def table(self) -> Table:
        return self.benchmark, self.variant, self.preset

    @property
    def identity(self) -> tuple[str, str, str, str, int, int]:
        """Unique for every cell; the sort key of cells."""
        return *self.table, self.method, self.order_index, self.seed

    @property
    def name(self) -> str:
        return cell_name(self.table, self.method, self.order_index, self.seed)

    def matrix(self, combine: str = "particles") -> NDArray[np.float64] | None:
        """R `[T + 1, T]` with NaN for null; None if the cell has none."""
        rows = self.scores.get(combine)
        return np.array(rows, dtype=np.float64) if rows else None

    def final(self, combine: str = "particles") -> NDArray[np.float64] | None:
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


def problem(error: ValidationError) -> str:
    """What is wrong with a record, in a few words."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    text = first["msg"].removeprefix("Value error, ")
    return f"{place}: {text[0].lower()}{text[1:]}" if place else text
