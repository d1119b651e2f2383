"""The page "What equals what": the guarantees and measurements of tests/equality."""

from collections.abc import Callable
from dataclasses import dataclass

from docs.tools.sections import PROSE, Results, page

from orderless.writing import markdown_table
from orderless_lab.storage.typed import decode

TEXT = PROSE["equality"]


@dataclass(frozen=True)
class Cell:
    """The differences between two ways to compute, in the learned state and in the predictions."""

    promised: list[float] | None
    learned: float
    answered: float


def equality_page(results: Results) -> str | None:
    """From `equality.json`; None without it."""
    if (content := results.read("equality.json")) is None:
        return None
    ways = decode(dict[str, dict[str, Cell]], content["equality"])  # way -> learner -> cell

    def crossed(text: Callable[[Cell], str]) -> str:
        rows = [
            [name, *(text(cells[name]) if name in cells else "-" for cells in ways.values())]
            for name in next(iter(ways.values()))
        ]
        return markdown_table(["", *ways], rows)

    where = "; ".join(f"{kind}: {machine}" for kind, machine in sorted(content["machines"].items()))
    measured = f"## What was measured\n\n{TEXT['measured']} {where}.\n"
    figures = crossed(lambda cell: f"{cell.learned:.1g} / {cell.answered:.1g}")
    parts = crossed(_promise), f"\n{TEXT['notes']}\n", measured, figures
    return page("What equals what", TEXT["words"], *parts, source="equality.json")


def _promise(cell: Cell) -> str:
    if cell.promised is None:
        return "no"
    learned, answered = cell.promised
    if learned == answered == 0:
        return "**bits**"
    return "**sums**" if learned == 0 else f"{max(learned, answered):.0e}"
