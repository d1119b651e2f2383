"""A directory of finished work: records with a checksum, one writer at a time, whole files only.

DIR/cells/NAME.json          one finished cell each, with a checksum
"""

import errno
import fcntl
import hashlib
import importlib.util
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

from ..version import __version__
from .typed import Json, as_json

FORMAT = 1
LOCK = ".lock"
LARGEST_CELL = 2**28  # bytes; one with a million predictions has two million


class StoreError(Exception):
    """Something about a run directory, in one sentence."""


class DamagedFile(UserWarning):
    """A file that is not what was written; each is named, however many there are."""


def user_cache() -> Path:
    """This user's folder for data of this package."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orderless"


def package_files(package: str, pattern: str) -> list[Path]:
    """What an installed package holds under a pattern; it is found, not imported."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations or [] if spec else []
    return [path for folder in folders for path in sorted(Path(folder).glob(pattern))]


def versions() -> dict[str, str]:
    """Of what results depend on, for the records."""
    return {"orderless": __version__, "torch": torch.__version__, "numpy": np.__version__}


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name, flush to the disk, rename."""
    # a name of its own: another machine on the same file system may be writing this file, too
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is None:
            raise
        # about the file, not about its temporary name
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def _digest(cell: Json) -> str:
    text = json.dumps(cell, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_cell(path: Path) -> dict[str, Json]:
    """A finished cell; a file that is not what was written raises `ValueError`."""
    try:
        if not path.is_file():  # a FIFO or a device could be read for ever
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
    """Rename a damaged file, so that it is computed again."""
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
        """Make the directory with these folders (all by default), and see that it is writable."""
        try:
            for name in folders or self.folders:
                (self.directory / name).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise StoreError(f"cannot write to {self.directory}: {error.strerror}") from None

    def mark(self) -> str:
        """The directory's own: who reads the same mark there sees the same directory."""
        return (self.directory / LOCK).read_text()

    @contextmanager
    def lock(self) -> Iterator[str]:
        """One run at a time; the lock goes with the process, however it ends. Gives the `mark`."""
        with self._lock_file() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(
                    f"another run is writing to {self.directory}: wait for it or choose another "
                    "--out"
                ) from None
            for part in self.directory.glob("*/.*.part"):  # of a run that was killed
                part.unlink(missing_ok=True)
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
        """Opened for reading and writing; never what a link under its name points to."""
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
        """The files of a cell, its record first, and what reads each."""
        return {self.cell_path(name): read_cell}

    def finished(self) -> dict[str, dict[str, Json]]:
        """All finished cells by name, without those of which a file is damaged. Changes nothing."""
        records = {}
        for path in sorted((self.directory / "cells").glob("*.json")):
            with suppress(ValueError):
                files = self.readers(path.stem).items()
                record, *_ = [read(file) for file, read in files if file.exists()]
                records[path.stem] = record
        return records

    def tidy(self, name: str, *, finished: bool) -> None:
        """Before a run, move away what an earlier one left of a cell and cannot be read."""
        for path, read in () if finished else self.readers(name).items():
            try:
                if path.exists():
                    read(path)
            except ValueError:
                set_aside(path)

    def write_cell(self, name: str, record: object) -> None:
        """Write a frozen dataclass, or what is plain JSON already, as the record of a cell."""
        cell = as_json(record)
        wrapper = {"format": FORMAT, "checksum": _digest(cell), "cell": cell}
        text = json.dumps(wrapper, indent=1, allow_nan=False)
        with self.space():
            write_atomically(self.cell_path(name), text.encode())

    @contextmanager
    def space(self) -> Iterator[None]:
        """A disk that is full is told in a sentence."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(
                f"cannot write to {self.directory}: {reason}; finished cells are safe, and the "
                "same command goes on from here"
            ) from None
