"""The summary of a table: every number of every row, verdicts on the paper's claims, and notes."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from orderless import metrics

from ..paper.claims import Claim, judge_claims
from ..runs.store import as_json
from .columns import numbers_of
from .frame import Row, Run, Table, load, shared_settings, tables
from .sentences import headline, notes


@dataclass(frozen=True, eq=False)
class Summary:
    """One table: `numbers` has a line per row, and a column per number (see `columns`)."""

    table: Table
    numbers: pd.DataFrame
    claims: list[Claim]
    headline: str
    notes: list[str]

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """Row -> its numbers, lists by order and by task, and settings of its own; what
        is not known is None."""
        shared = shared_settings(self.table.cells)
        return {
            name: as_json({**dict(self.numbers.loc[name]), **details(row, shared)})  # type: ignore[misc]
            for name, row in self.table.rows.items()
        }

    def as_json(self) -> dict[str, Any]:
        """What `orderless report --json` prints: plain JSON, never with NaN or infinity."""
        table = self.table
        cells = table.cells
        names = distinct(name for cell in cells for name in cell.versions)
        content = {
            "benchmark": table.benchmark,
            "variant": table.variant,
            "preset": table.preset,
            "unit": "return" if table.returns else "accuracy",
            "task_names": table.task_names,
            "settings": shared_settings(cells),
            "methods": self.methods,
            "claims": [asdict(claim) for claim in self.claims],
            "command": " && ".join(distinct(cell.command for cell in cells)),
            "device": ", ".join(distinct(cell.device for cell in cells)),
            "versions": {
                name: ", ".join(distinct(cell.versions.get(name) for cell in cells))
                for name in names
            },
            "duration": sum(cell.duration for cell in cells),
            "notes": self.notes,
            "expert": cells[0].expert,
        }
        return as_json(content)  # type: ignore[return-value]


def summarize(*sources: Run | str | Path) -> list[Summary]:
    """The summaries of one or several runs (directories, or what `load` returned).

    One run has a summary per benchmark, variant and preset. Several runs share a table wherever
    benchmark and variant are the same; a method with other settings in another run has a row of
    its own.
    """
    found = []
    for table in tables([load(source) for source in sources]):
        numbers = numbers_of(table.rows)
        claims = judge_claims(table)
        sentence = headline(table, numbers)
        found.append(Summary(table, numbers, claims, sentence, notes(table, numbers)))
    return found


def details(row: Row, shared: dict[str, Any]) -> dict[str, Any]:
    """What a row has besides its numbers."""
    scores = row.scores
    settings = shared_settings(row.block)
    return {
        "order_averages": metrics.order_averages(scores).tolist(),
        "task_averages": scores.mean(axis=(0, 1)).tolist(),
        "order_indices": row.orders,
        "seed_values": row.seeds,
        "orders": len(row.orders),
        "seeds": len(row.seeds),
        "cells": len(row.cells),
        "died": row.died,
        "duration": sum(cell.duration for cell in row.cells),
        "settings": {key: value for key, value in settings.items() if key not in shared},
    }


def distinct(values: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value))
