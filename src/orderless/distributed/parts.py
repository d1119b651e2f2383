"""Sums over pieces of a data set, kept in files that can be used again.

The name of a piece's file is a hash of its content and of the filter's maps, grid and targets. So a
file never stands for other data and never becomes stale, and another fit may cut the data in
another way. Pieces of equal content share a file, and each of them counts.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orderless_lab.storage import Directory

from ..exact import ExactHead
from ..exact.sums import HeadSums
from ..io import load, save

Piece = tuple[Any, Any]  # x and y, tensors or arrays
Reader = Callable[[Any], Piece | Iterable[Piece]]


@dataclass(frozen=True)
class Parts:
    """Computes the sums of shards, piece by piece; every process has a copy.

    `make_filter` makes a filter without data, `fingerprint` is that of its maps in the process that
    called `fit`, and `folder` holds the files of finished pieces.
    """

    make_filter: Callable[[], ExactHead]
    read: Reader
    folder: Path | None
    fingerprint: str

    device = torch.device("cpu")  # the number of processes is that of cores

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "filter"}

    @cached_property
    def filter(self) -> ExactHead:
        """This process's filter, without data."""
        made = self.make_filter()
        if made.grid.fingerprint != self.fingerprint:
            raise ValueError(
                "make_filter must make the same feature maps every time, got the fingerprint "
                f"{made.grid.fingerprint!r} on a worker and {self.fingerprint!r} in fit"
            )
        return made

    def pieces(self, shard: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the pieces of a shard as tensors."""
        given = self.read(shard)
        pairs: Any = [given] if isinstance(given, tuple) or given is None else given
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise TypeError(
                    f"read must give a pair (x, y) or an iterator of such pairs, got "
                    f"{type(pair).__name__}"
                )
            x, y = pair
            if len(x):
                yield _tensor(x), _tensor(y)

    def path(self, x: Tensor, y: Tensor) -> Path | None:
        """The file of a piece; None if no files are kept here."""
        if self.folder is None or not self.folder.is_dir():
            return None  # this machine does not see the folder
        rb = self.filter
        settings = f"{rb.grid.fingerprint} {vars(rb.intake.targets)} {rb.intake.calibration}"
        digest = hashlib.sha256(settings.encode())
        for tensor in (x, y):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return self.folder / f"{digest.hexdigest()}.safetensors"

    def load(self, path: Path) -> HeadSums:
        rb = self.filter
        return HeadSums.from_state(load(path), rb.intake.units, rb.grid.device)

    def sums(self, x: Tensor, y: Tensor, path: Path | None) -> HeadSums:
        """The sums of one piece, from its file if there is one."""
        if path is not None and path.is_file():
            with suppress(ValueError):  # a damaged file is computed again and overwritten
                return self.load(path)
        part = self.filter.holding(None)
        part.update(x, y)
        assert part.sums is not None
        if path is not None:
            with Directory(path.parent).space():
                save(path, part.sums.state_dict())
        return part.sums

    def compute(self, shard: Any, store: Any, tick: Callable[[int], None]) -> list[Path]:
        """Compute the pieces of a shard and return their files; called by a launcher."""
        files = []
        for x, y in self.pieces(shard.content):
            path = self.path(x, y)
            assert path is not None
            self.sums(x, y, path)
            files.append(path)
            tick(len(x))
        return files

    def memory(self) -> int:
        """The approximate number of bytes that a process needs."""
        return 2**30


def merged(parts: Iterable[HeadSums | None]) -> HeadSums | None:
    """The total of several sums; None if there are none."""
    there = [part for part in parts if part is not None]
    return reduce(HeadSums.plus, there) if there else None


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if isinstance(values, np.ndarray) and values.dtype == object:  # a column of lists
        values = np.stack(list(values))
    return torch.from_numpy(np.array(values))  # a copy: Ray's arrays are read-only
