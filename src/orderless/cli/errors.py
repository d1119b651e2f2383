"""Errors at the command line: one sentence and an exit code for what its user can mend.

Any other error is a fault of a program and keeps its traceback. With ORDERLESS_TRACEBACK=1 every
error does.
"""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from ..errors import UserError, WriteError, printable
from .progress import OnceOfAKind

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
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)  # it is reported like Ctrl-C
    try:
        with warnings.catch_warnings():
            warnings.showwarning = OnceOfAKind()
            yield
    except (UserError, WriteError) as error:
        _end(str(error))
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        certain = isinstance(error, MemoryError)
        if not certain and not any(text in str(error) for text in OUT_OF_MEMORY):
            raise
        _end(f"out of memory: use {less_memory}")
    except KeyboardInterrupt as stopped:
        number = signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT
        _end(str(stopped) or "stopped; no file was written or changed", 128 + number)


def _end(text: str, code: int = 2) -> None:
    """Print why the command ends, and end it."""
    if os.environ.get("ORDERLESS_TRACEBACK"):
        raise  # noqa: PLE0704  # the error that is being handled
    lines = map(printable, text.splitlines())  # it may quote names of users
    print("orderless: " + "\n".join(lines), file=sys.stderr)
    raise typer.Exit(code) from None


def _terminate(*_: Any) -> None:
    raise Terminated
