"""Names that users choose, and numbers, as text for terminals and spreadsheets."""

import re

MISSING = "-"
FORMULA = ("=", "+", "-", "@")  # a spreadsheet evaluates a cell that begins with one of these
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)


def printable(text: str) -> str:
    """The text with control characters, line breaks and changes of direction as escapes.

    >>> printable("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    letters = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(letters)


def csv_cell(text: str) -> str:
    """The text for a CSV cell; a quote before it prevents its evaluation as a formula.

    >>> csv_cell("=1+1"), csv_cell("-1")
    ("'=1+1", '-1')
    """
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal."""
    return MISSING if value is None else f"{100 * value:.1f}"


def small(value: float | None) -> str:
    """A variance with two significant digits; exactly 0 is written as 0."""
    if value is None:
        return MISSING
    return "0" if value == 0 else f"{value:.2g}"
