"""Formatting of numbers and tables for all reports."""

from collections.abc import Sequence

MISSING = "-"


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal."""
    return MISSING if value is None else f"{100 * value:.1f}"


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with `digits` decimals."""
    return MISSING if value is None else f"{value:.{digits}f}"


def small(value: float | None) -> str:
    """A variance with two significant digits; exactly 0 is written as 0."""
    if value is None:
        return MISSING
    return "0" if value == 0 else f"{value:.2g}"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 order, 2 orders."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table whose first `left` columns are left-aligned and the others right-aligned.

    Cells are not padded, so that a changed number changes one line of a page only.
    """
    rule = [":--" if place < left else "--:" for place in range(len(headings))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, rule, *rows))
