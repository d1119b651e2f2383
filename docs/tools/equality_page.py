"""The page of what equals what: promises and measurements of tests/equality."""

import json
from dataclasses import dataclass
from pathlib import Path

from docs.tools.sections import PROSE, page

from orderless.storage.typed import decode
from orderless.writing import markdown_table

NAME = "equality"
TEXT = PROSE["equality"]


@dataclass(frozen=True)
class Cell:
    """How far two ways are apart in what they learned and what they answered."""

    promised: list[float] | None
    learned: float
    answered: float


@dataclass(frozen=True)
class Equality:
    """`equality.json`: way -> learner -> cell."""

    equality: dict[str, dict[str, Cell]]
    machines: dict[str, str]


def equality_page(directory: Path) -> str | None:
    """From `equality.json` in the directory; None without it."""
    path = directory / f"{NAME}.json"
    if not path.exists():
        return None
    found = decode(Equality, json.loads(path.read_text(encoding="utf-8")))
    cells, machines = found.equality, found.machines
    promises, figures = (
        markdown_table(
            ["", *cells],
            [
                [row, *(text(column.get(row)) for column in cells.values())]
                for row in next(iter(cells.values()))
            ],
        )
        for text in (_promise, _figures)
    )
    where = "; ".join(f"{kind}: {machine}" for kind, machine in sorted(machines.items()))
    measured = f"## What was measured\n\n{TEXT['measured']} {where}.\n"
    parts = promises, f"\n{TEXT['notes']}\n", measured, figures
    return page("What equals what", TEXT["words"], *parts, source=path.name)


def _promise(cell: Cell | None) -> str:
    if cell is None or cell.promised is None:
        return "-" if cell is None else "no"
    learned, answered = cell.promised
    if learned == answered == 0:
        return "**bits**"
    return "**sums**" if learned == 0 else f"{max(learned, answered):.0e}"


def _figures(cell: Cell | None) -> str:
    return "-" if cell is None else f"{cell.learned:.1g} / {cell.answered:.1g}"
