"""A cell of a grid: one method, one order of the tasks, one seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..methods import find_method
from ..methods.settings import SharedSettings
from .benchmarks import find_benchmark
from .record import cell_name


@dataclass(frozen=True)
class Cell:
    """Benchmark, method, order, seed and settings: all that a result depends on."""

    benchmark: str
    scenario: str
    preset: str
    method: str
    order_index: int
    order: tuple[int, ...]
    seed: int
    settings: SharedSettings

    @property
    def kind(self) -> str:
        """The key of its runner in `grid.RUNNERS`."""
        return find_benchmark(self.benchmark).kind

    @property
    def slow(self) -> bool:
        return find_method(self.method).slow

    @property
    def title(self) -> str:
        return f"{self.method} order {self.order_index} seed {self.seed}"

    @property
    def name(self) -> str:
        table = self.benchmark, self.scenario, self.preset
        return cell_name(table, self.method, self.order_index, self.seed)

    def _fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Cell)}

    def describe(self) -> dict[str, object]:
        """The fields of its record that describe the cell."""
        flat = self.settings.flat(find_method(self.method))
        return {**self._fields(), "order": list(self.order), "settings": flat}

    def differs(self, record: Mapping[str, Any]) -> str | None:
        """The first difference to a record, "key=its value, not ours"; None if there is none."""
        for key, value in self.describe().items():
            if key != "settings" and record[key] != value:
                return f"{key}={record[key]}, not {value}"
        return self.settings.differs(record["settings"], find_method(self.method))
