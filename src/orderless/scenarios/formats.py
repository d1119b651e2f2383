"""Readers for the two file formats of the image data sets, safe on files from anywhere.

* IDX (MNIST), gzipped or raw. The sizes in the header are compared with a limit and with the
  bytes that are there before anything of that size is allocated.
* The pickles of CIFAR-100. Unpickling runs code by design, so this unpickler knows arrays, bytes,
  text, lists, dicts and numbers, and refuses every other name. Not even numpy's own constructors
  are called: stand-ins below take their place and check what they are given.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from .errors import DataError

_CHUNK = 1 << 20
_LARGEST_IDX = 1 << 30  # the largest IDX payload anyone needs here; MNIST's is 47 MB
_UNSIGNED_BYTE = 0x08


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
            contents, shape = _read_idx_stream(stream, path, name)  # type: ignore[arg-type]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, f"gzip says: {error}", name) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if md5 is not None:
        found = hashlib.md5(contents, usedforsecurity=False).hexdigest()
        if found != md5:
            raise damaged(path, f"the MD5 of its contents is {found}, not {md5}", name)
    return torch.frombuffer(contents, dtype=torch.uint8, offset=4 + 4 * len(shape)).view(shape)


def _read_idx_stream(
    stream: BinaryIO, path: Path, name: str | None
) -> tuple[bytearray, tuple[int, ...]]:
    header = stream.read(4)
    if len(header) < 4 or header[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or not 1 <= header[3] <= 4:
        raise damaged(path, "it does not begin like an IDX file of unsigned bytes", name)
    sizes = stream.read(4 * header[3])
    if len(sizes) < 4 * header[3]:
        raise damaged(path, "its header is cut short", name)
    shape = struct.unpack(f">{header[3]}I", sizes)
    payload = math.prod(shape)
    if not 0 < payload <= _LARGEST_IDX:
        raise damaged(path, f"its header asks for {payload} bytes, shape {shape}", name)
    contents = bytearray(header + sizes)
    expected = len(contents) + payload
    # Chunk by chunk, so that a header that lies costs no more memory than the file really holds.
    while len(contents) <= expected:
        chunk = stream.read(min(_CHUNK, expected + 1 - len(contents)))
        if not chunk:
            break
        contents += chunk
    if len(contents) != expected:
        more = "more" if len(contents) > expected else f"only {len(contents)}"
        raise damaged(path, f"its header promises {expected} bytes and it holds {more}", name)
    return contents, shape


class _PickledDtype:
    """Stands in for numpy.dtype: remembers the code, which must be that of plain numbers."""

    ALLOWED = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")

    def __init__(self, code: Any, *_: Any) -> None:
        code = code.decode("ascii") if isinstance(code, bytes) else code
        if code not in self.ALLOWED:
            raise pickle.UnpicklingError(f"an array of dtype {code!r} is not admitted")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {order!r} is not known")
        self.dtype = self.dtype.newbyteorder(order)


class _PickledArray:
    """Stands in for numpy.ndarray: takes its pickled state and checks it against its bytes."""

    array: np.ndarray

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran_order, data = state
        if not isinstance(kind, _PickledDtype) or not isinstance(data, bytes):
            raise pickle.UnpicklingError("an array's state is not dtype and bytes")
        flat = np.frombuffer(data, dtype=kind.dtype)
        self.array = flat.reshape(shape, order="F" if fortran_order else "C")


def _latin1(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, with which Python 3 writes bytes at protocol 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not admitted")
    return str.encode(text, "latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _PickledArray,
    ("numpy", "dtype"): _PickledDtype,
    ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
    ("_codecs", "encode"): _latin1,
}


_PYTHON_UNPICKLER: Any = pickle._Unpickler
_LEFT_OUT = (
    *(pickle.BYTEARRAY8, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
    *(pickle.INST, pickle.OBJ, pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.PERSID, pickle.BINPERSID, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)


class RestrictedUnpickler(_PYTHON_UNPICKLER):
    """Admits arrays of numbers, bytes, text, lists, dicts and numbers, and nothing else.

    The unpickler that is written in Python: the one in C takes memory for as many memo entries as
    a file says it has, before it has them. Opcodes that would do the like, and those that plain
    data does not need, are left out.
    """

    dispatch = {
        code: load
        for code, load in _PYTHON_UNPICKLER.dispatch.items()
        if bytes([code]) not in _LEFT_OUT
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not admitted") from None

    def load_build(self) -> None:
        """State is for arrays and their dtypes: anything else here is code."""
        if not isinstance(self.stack[-2], (_PickledArray, _PickledDtype)):
            raise pickle.UnpicklingError(f"a {type(self.stack[-2]).__name__} has no state")
        super().load_build()

    def load_setitem(self) -> None:
        self._check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        self._check_keys(self.stack[::2])
        super().load_dict()

    def _check_keys(self, keys: list[Any]) -> None:
        """A tuple of tuples of tuples takes for ever to hash."""
        for key in keys:
            if not isinstance(key, (int, str, bytes)):
                raise pickle.UnpicklingError(f"a {type(key).__name__} as a key is not admitted")

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict


def unpickle(data: bytes) -> Any:
    """The plain data in a pickle; keys and text of Python 2 pickles come back as bytes.

    Anything but plain data raises `pickle.UnpicklingError`, and nothing named in it is called.
    """
    try:
        return _plain(RestrictedUnpickler(io.BytesIO(data), encoding="bytes").load(), {})
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a broken pickle can fail in any opcode, with any exception
        reason = f"{type(error).__name__}: {error}"
        raise pickle.UnpicklingError(f"it is not a whole pickle ({reason})") from error


def _plain(value: Any, known: dict[int, Any]) -> Any:
    """Replace the stand-ins by the arrays they hold and refuse what is not plain data.

    What a pickle holds many times is made once (`known`, by identity), or a small one that holds
    a list of lists of lists, each ten times the same, would fill the memory.
    """
    if isinstance(value, _PickledArray):
        return value.array
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if not isinstance(value, (dict, list, tuple)):
        raise pickle.UnpicklingError(f"a {type(value).__name__} is not admitted")
    if id(value) not in known:
        if isinstance(value, dict):
            known[id(value)] = {key: _plain(item, known) for key, item in value.items()}
        else:
            known[id(value)] = type(value)(_plain(item, known) for item in value)
    return known[id(value)]
