"""Errors at the command line: one sentence and an exit code, no traceback."""

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from ..escaping import printable

# torch has no error class for the host's memory
OUT_OF_MEMORY = ("out of memory", "allocate memory", "not enough memory")


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, which schedulers send to stop a job."""


@contextmanager
def problems_as_sentences(less_memory: str = "less data") -> Iterator[None]:
    """Print an error as one sentence and exit with code 2; print warnings as sentences, too.

    `less_memory` is what the sentence recommends when memory runs out. A `KeyboardInterrupt` with a
    text prints that text.
    """
    # imported before anything can fail: an error may leave no time or memory for imports
    from orderless_lab.experiments import StoreError
    from orderless_lab.experiments.launch.local import handled
    from orderless_lab.experiments.progress import OnceOfAKind
    from orderless_lab.report import ReportError
    from orderless_lab.rl.runtime import ProcgenMissing

    from ..ensemble.sharding import RankLost
    from ..errors import DataError

    # errors that a user can cause; their texts are sentences
    ours = (DataError, ReportError, StoreError, ProcgenMissing, RankLost)
    problems = (ValueError, IndexError, OSError, FloatingPointError, *ours)
    try:
        # SIGTERM, from a scheduler or `timeout`, is reported like Ctrl-C
        with handled(signal.SIGTERM, _terminate), warnings.catch_warnings():
            warnings.showwarning = OnceOfAKind()
            yield
    except BrokenPipeError:  # whoever read the output has closed it: typer ends quietly
        raise
    except problems as error:
        complain(error)
        raise typer.Exit(2) from None
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        told = isinstance(error, MemoryError)
        if not told and not any(text in str(error) for text in OUT_OF_MEMORY):
            raise
        complain(f"out of memory: use {less_memory}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stopped:
        said = str(stopped) or "stopped; the same command resumes from what was saved"
        typer.echo(f"\norderless: {said}", err=True)
        number = signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT
        raise typer.Exit(128 + number) from None


def complain(problem: BaseException | str) -> None:
    """Print an error, which may quote names of users."""
    lines = (printable(line) for line in str(problem).splitlines())
    typer.echo("orderless: " + "\n".join(lines), err=True)


def _terminate(*_: Any) -> None:
    raise Terminated
