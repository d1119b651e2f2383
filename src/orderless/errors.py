"""Errors whose message is all that their reader needs, and names of users in such a message."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

FORMULA = ("=", "+", "-", "@")  # a spreadsheet evaluates a cell that begins with one of these
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)


class UserError(ValueError):
    """What was given cannot be used; the message is one sentence with the value and the fix."""


class DataError(UserError):
    """A data set or file is missing, damaged or cannot be fetched."""


class MissingFile(DataError, FileNotFoundError):
    """A file that is to be read is not there."""


class WriteError(OSError):
    """A file cannot be written."""

    def __str__(self) -> str:
        return f"cannot write {self.filename}: {self.strerror}"


def did_you_mean(given: str, choices: Iterable[str]) -> str:
    """A question that ends a message about an unknown name; empty if no choice is like it.

    >>> did_you_mean("lables", ["label", "price"])
    " (did you mean 'label'?)"
    """
    alike = get_close_matches(given, [str(choice) for choice in choices], 1)
    return f" (did you mean {alike[0]!r}?)" if alike else ""


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
