"""Readers for the two file formats of the image data sets: IDX (MNIST) and pickles (CIFAR-100).

Both refuse a file whose checksum is not the published one, so the content needs no further check.
The unpickler admits only the names of numpy's arrays all the same, because unpickling runs code.
"""

import gzip
import hashlib
import io
import pickle
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderless.errors import DataError

MD5 = partial(hashlib.md5, usedforsecurity=False)
LARGEST = 64  # MiB read of an IDX file: MNIST's have 45, and a .gz may be endless


def damaged(path: Path, reason: str, name: str) -> DataError:
    """The error for a damaged file of data set `name`."""
    return DataError(
        f"{path} is damaged ({reason}): delete it and run `orderless data fetch {name}` again."
    )


def md5_of(path: Path) -> str:
    """MD5 of a file's bytes on the disk."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, MD5).hexdigest()


def read_idx(path: Path, md5: str, name: str) -> Tensor:
    """One IDX file of unsigned bytes as a uint8 tensor of the shape its header gives.

    `md5` is that of the *unzipped* contents, because copies of MNIST are compressed by different
    versions of gzip.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            digest = MD5()
            for _ in range(LARGEST):
                digest.update(stream.read(1 << 20))
            if (found := digest.hexdigest()) != md5:
                raise damaged(path, f"the MD5 of its contents is {found}, not {md5}", name)
            stream.seek(0)
            contents = bytearray(stream.read())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, f"gzip: {error}", name) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    start = 4 + 4 * contents[3]
    shape = struct.unpack(f">{contents[3]}I", contents[4:start])
    return torch.frombuffer(contents, dtype=torch.uint8, offset=start).view(shape)


class _ArrayUnpickler(pickle.Unpickler):
    """Admits arrays and the types that pickles have opcodes for, and calls nothing else."""

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
    """Load arrays, bytes, lists and dicts from a pickle; Python 2 text becomes bytes."""
    return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()


def read_pickle(path: Path, md5: str, name: str) -> Any:
    """Load a pickle that has this MD5."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if (found := MD5(data).hexdigest()) != md5:
        raise damaged(path, f"its MD5 is {found}, not {md5}", name)
    return unpickle(data)
