"""A cell of a grid: one method, one order of the tasks, one seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..methods import find_method
from ..methods.settings import RunSettings
from ..text import file_name

Table = tuple[str, str, str]  # (benchmark, variant, preset)


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
        return f"{self.method} order {self.order_index} seed {self.seed}"

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
