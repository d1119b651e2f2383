"""A directory of finished cells: JSON records with a checksum, one writer, atomic writes.

DIR/cells/NAME.json          one finished cell
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from orderless import __version__
from orderless.errors import UserError
from orderless.io import write_atomically

from ..text import file_name
from .typed import Json, as_json

FORMAT = 1
LOCK = ".lock"
LARGEST_CELL = 2**28  # bytes; one with a million predictions has two million


class StoreError(UserError):
    """A problem with a run directory, described in one sentence."""


class DamagedFile(UserWarning):
    """A file is damaged; there is one warning per file."""

    numbers_tell_apart = True


def versions() -> dict[str, str]:
    """Versions of the packages that results depend on, for the records."""
    return {"orderless": __version__, "torch": torch.__version__, "numpy": np.__version__}


def _digest(cell: Json) -> str:
    text = json.dumps(cell, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_cell(path: Path) -> dict[str, Json]:
    """Read a finished cell; raise `ValueError` if the file is damaged."""
    try:
        if not path.is_file():  # reading a FIFO or a device might never end
            raise ValueError("it is no file")
        with path.open("rb") as file:
            content = file.read(LARGEST_CELL + 1)
        if len(content) > LARGEST_CELL:
            raise ValueError("it is larger than any cell")
        wrapper = json.loads(content.decode())
        cell = wrapper["cell"]
        if wrapper["format"] != FORMAT:
            raise ValueError(f"its format is {wrapper['format']!r}, not {FORMAT}")
        if wrapper["checksum"] != _digest(cell):
            raise ValueError("its checksum does not match")
        if not isinstance(cell, dict):
            raise ValueError("it holds no record")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run again") from None
    return cell


def set_aside(path: Path) -> None:
    """Rename a damaged file, so that its cell is computed again."""
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    text = f"{path} was damaged: it is now {aside}, and computed again"
    warnings.warn(text, DamagedFile, stacklevel=3)


class Directory:
    """Reads and writes the finished cells of one directory."""

    folders: tuple[str, ...] = ("cells",)

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def prepare(self, *folders: str) -> None:
        """Create the directory with these folders (default: all) and check that it is writable."""
        try:
            for name in folders or self.folders:
                (self.directory / name).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise StoreError(f"cannot write to {self.directory}: {error.strerror}") from None

    def mark(self) -> str:
        """The directory's identifier, "" without a lock; who reads the same mark shares it."""
        lock = self.directory / LOCK
        return lock.read_text() if lock.is_file() else ""

    @contextmanager
    def lock(self) -> Iterator[str]:
        """Lock the directory for one run and yield its `mark`; the lock ends with the process."""
        with self._lock_file() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"another run is writing to {self.directory}: wait for it or choose another "
                    "--out"
                ) from None
            except OSError as error:  # such as some network file systems
                warnings.warn(
                    f"{self.directory} cannot be locked ({error.strerror}): let one run at a time "
                    "write to it",
                    stacklevel=3,
                )
            for part in self.directory.glob("*/.*.part"):  # left by a run that was killed
                part.unlink(missing_ok=True)
            for path in [p for name in self.folders for p in (self.directory / name).glob("*:*")]:
                # older versions had the ":" of `module:name` in names of files
                new = path.with_name(file_name(path.name))
                if not new.exists():
                    path.rename(new)
            file.seek(0)
            mark = file.read()
            if not re.fullmatch("[0-9a-f]{32}", mark):
                mark = secrets.token_hex(16)
                with self.space():
                    file.truncate(0)
                    file.write(mark)
                    file.flush()
            yield mark

    def _lock_file(self) -> TextIO:
        """Open the lock file for reading and writing, without following a link."""
        path = self.directory / LOCK
        try:
            return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise StoreError(f"{path} is a link to another file: remove it") from None

    def cell_path(self, name: str) -> Path:
        return self.directory / "cells" / f"{name}.json"

    def readers(self, name: str) -> dict[Path, Callable[[Path], Any]]:
        """The files of a cell, its record first, each with its reader."""
        return {self.cell_path(name): read_cell}

    def finished(self) -> dict[str, dict[str, Json]]:
        """All finished cells by name, except those with a damaged file; changes nothing."""
        records = {}
        for path in sorted((self.directory / "cells").glob("*.json")):
            with suppress(ValueError):
                files = self.readers(path.stem).items()
                record, *_ = [read(file) for file, read in files if file.exists()]
                records[file_name(path.stem)] = record
        return records

    def tidy(self, name: str, *, finished: bool) -> None:
        """Before a run, set aside damaged files of an unfinished cell."""
        for path, read in () if finished else self.readers(name).items():
            try:
                if path.exists():
                    read(path)
            except ValueError:
                set_aside(path)

    def write_cell(self, name: str, record: object) -> None:
        """Write the record of a cell, a dataclass or plain JSON."""
        cell = as_json(record)
        wrapper = {"format": FORMAT, "checksum": _digest(cell), "cell": cell}
        text = json.dumps(wrapper, indent=1, allow_nan=False)
        with self.space():
            write_atomically(self.cell_path(name), text.encode())

    @contextmanager
    def space(self) -> Iterator[None]:
        """Report a failed write, for example to a full disk, as a `StoreError`."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(
                f"cannot write to {self.directory}: {reason}; finished cells are safe, and the "
                "same command resumes"
            ) from None
