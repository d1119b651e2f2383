"""What goes wrong at the command line: one sentence and an exit code, no traceback."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import typer

from .experiments import StoreError
from .experiments.progress import OnceOfAKind
from .experiments.ranks import complain, rank
from .particles.sharding import RankLost
from .report import ReportError
from .rl.runtime import ProcgenMissing
from .scenarios import DataError

# What goes wrong for a user's reasons; the text of each is a sentence.
PROBLEMS = (
    ValueError,
    IndexError,
    OSError,
    FloatingPointError,
    DataError,
    ReportError,
    StoreError,
    ProcgenMissing,
    RankLost,
)
# torch has no error of its own for the host's memory
OUT_OF_MEMORY = ("out of memory", "allocate memory", "not enough memory")


@contextmanager
def problems_as_sentences() -> Iterator[None]:
    """One sentence and exit code 2, no traceback; warnings as sentences, too."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = OnceOfAKind()
            yield
    except PROBLEMS as error:
        complain(error)
        raise typer.Exit(2) from None
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        told = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not told and not any(text in str(error) for text in OUT_OF_MEMORY):
            raise
        complain("out of memory: use fewer --particles or --set chunk_size=K")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        if rank() == 0:
            typer.echo("\norderless: stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
