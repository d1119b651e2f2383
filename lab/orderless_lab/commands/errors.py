"""Errors of the lab's commands at the command line."""

from collections.abc import Iterator
from contextlib import contextmanager

from orderless.cli import errors


@contextmanager
def problems_as_sentences(less_memory: str = "less data") -> Iterator[None]:
    """As in the library; whoever stops a command is told how it goes on."""
    with errors.problems_as_sentences(less_memory):
        try:
            yield
        except KeyboardInterrupt as stopped:
            stopped.args = stopped.args or (
                "stopped; the same command resumes from what was saved",
            )
            raise
