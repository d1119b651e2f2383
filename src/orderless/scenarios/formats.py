"""Readers for the two file formats of the image data sets.

* IDX (MNIST), gzipped or raw. The sizes in the header are compared with a limit before anything
  of that size is read.
* The pickles of CIFAR-100. Unpickling runs code by design, so the files' checksums are compared
  first, and the unpickler knows numpy's arrays and no other name.
"""

import gzip
import hashlib
import io
import math
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import DataError

_CHUNK = 1 << 20
_LARGEST_IDX = 1 << 26  # bytes, however small its .gz is; MNIST's largest has 47 MB
_UNSIGNED_BYTES = bytes([0, 0, 8])  # how a file of them begins


def damaged(path: Path, reason: str, name: str | None = None) -> DataError:
    """The error for a file that is not what it should be."""
    again = f"run `orderless data fetch {name}` again" if name else "fetch it again"
    return DataError(f"{path} is damaged ({reason}): delete it and {again}.")


def read_file(path: Path) -> bytes:
    """The whole of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def md5_of(path: Path) -> str:
    """MD5 of a file's bytes as they lie on the disk."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def read_idx(path: Path, *, md5: str | None = None, name: str | None = None) -> Tensor:
    """One IDX file of unsigned bytes as a uint8 tensor of the shape its header gives.

    `md5`, where given, is that of the *unzipped* contents: MNIST is passed around zipped by
    different versions of gzip, and what counts is what is inside.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            header = stream.read(4)
            if len(header) < 4 or header[:3] != _UNSIGNED_BYTES or not 1 <= header[3] <= 4:
                raise damaged(path, "it does not begin like an IDX file of unsigned bytes", name)
            sizes = stream.read(4 * header[3])
            if len(sizes) < 4 * header[3]:
                raise damaged(path, "its header is cut short", name)
            shape = struct.unpack(f">{header[3]}I", sizes)
            payload = math.prod(shape)
            if not 0 < payload <= _LARGEST_IDX:
                raise damaged(path, f"its header asks for {payload} bytes, shape {shape}", name)
            contents = bytearray(header + sizes + stream.read(payload + 1))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, f"gzip says: {error}", name) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    expected = 4 + len(sizes) + payload
    if len(contents) != expected:
        more = "more" if len(contents) > expected else f"only {len(contents)}"
        raise damaged(path, f"its header promises {expected} bytes and it holds {more}", name)
    found = hashlib.md5(contents, usedforsecurity=False).hexdigest()
    if md5 not in (None, found):
        raise damaged(path, f"the MD5 of its contents is {found}, not {md5}", name)
    return torch.frombuffer(contents, dtype=torch.uint8, offset=expected - payload).view(shape)


class _ArrayUnpickler(pickle.Unpickler):
    """Admits arrays beside the types that pickles have opcodes for, and calls nothing else."""

    ADMITTED = {
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ADMITTED:
            raise pickle.UnpicklingError(f"{module}.{name} is not admitted")
        return super().find_class(module, name)


def unpickle(data: bytes) -> Any:
    """The arrays, bytes, lists and dicts in a pickle; text of Python 2 comes back as bytes.

    For data whose checksum was compared: a pickle that is made for it can still take much memory.
    """
    try:
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a broken pickle can fail in any opcode, with any exception
        reason = f"{type(error).__name__}: {error}"
        raise pickle.UnpicklingError(f"it is not a whole pickle ({reason})") from error
