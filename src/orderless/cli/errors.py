"""What goes wrong at the command line: one sentence and an exit code, no traceback."""

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

# torch has no error of its own for the host's memory
OUT_OF_MEMORY = ("out of memory", "allocate memory", "not enough memory")


class Terminated(KeyboardInterrupt):
    """SIGTERM came, by which a scheduler stops a job."""


@contextmanager
def problems_as_sentences(
    less_memory: str = "fewer --particles or --set chunk_size=K",
) -> Iterator[None]:
    """One sentence and exit code 2, no traceback; warnings as sentences, too.

    `less_memory`: what to use when there is too little.
    """
    # all of it now: what has gone wrong once leaves no time for imports
    from ..experiments import StoreError
    from ..experiments.launch.local import handled
    from ..experiments.launch.ranks import complain, rank
    from ..experiments.progress import OnceOfAKind
    from ..particles.sharding import RankLost
    from ..report import ReportError
    from ..rl.runtime import ProcgenMissing
    from ..scenarios import DataError

    # what goes wrong for a user's reasons; the text of each is a sentence
    ours = (DataError, ReportError, StoreError, ProcgenMissing, RankLost)
    problems = (ValueError, IndexError, OSError, FloatingPointError, *ours)
    try:
        # what a scheduler or `timeout` ends is told like what Ctrl-C ends
        with handled(signal.SIGTERM, _terminate), warnings.catch_warnings():
            warnings.showwarning = OnceOfAKind()
            yield
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
        if rank() == 0:
            typer.echo(
                "\norderless: stopped; the same command goes on from what was saved", err=True
            )
        number = signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT
        raise typer.Exit(128 + number) from None


def _terminate(*_: Any) -> None:
    raise Terminated
