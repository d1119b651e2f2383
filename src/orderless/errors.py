"""The errors whose message is all that their reader needs; the command line prints nothing else."""

from collections.abc import Iterable
from difflib import get_close_matches


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
