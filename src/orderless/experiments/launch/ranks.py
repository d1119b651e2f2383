"""A run under torchrun: all ranks compute the same cells, each on its share of the particles.

The first rank alone takes the lock, writes files and shows progress. The others read the run
directory when it has, so all of them must see it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...escaping import printable
from ...particles.sharding import RankLost, talking
from ...storage.directory import LOCK
from ...storage.typed import Json
from ..store import Store, StoreError

PATIENCE = timedelta(minutes=10)  # with a rank that neither answers nor closes its connection


def rank() -> int:
    """Which of torchrun's processes this is; 0 where there is only one."""
    return int(os.environ["RANK"]) if dist.is_torchelastic_launched() else 0


def ranks() -> int:
    return int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 1


@contextmanager
def joined(device: torch.device) -> Iterator[Any]:
    """The process group of a run under torchrun; None where there is only one process."""
    if ranks() == 1:
        yield None
        return
    if device.type == "cuda":
        local, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= there:
            raise ValueError(
                f"each rank needs a GPU of its own and there are {there}: use --nproc-per-node "
                f"{there} or --device cpu"
            )
        torch.cuda.set_device(local)
    before: Any = signal.signal(signal.SIGTERM, _told_to_end)
    try:
        with talking():
            # what is decided on the host goes by gloo, so that no GPU is kept waiting
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=PATIENCE)
        yield dist.group.WORLD
        with talking():
            # Until all are done: a thread of gloo's that lets go of the last result while Python
            # ends would take the whole process with it.
            dist.barrier()
        dist.destroy_process_group()
    except RankLost as error:
        before = signal.SIG_IGN  # torchrun is about to end us, and the sentence is still to be said
        raise RankLost(
            "another rank has ended or does not answer; the same command goes on from the last "
            "checkpoint, with any number of ranks"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _told_to_end(*_: Any) -> None:
    raise RankLost("torchrun ends all ranks when one has ended")


def complain(problem: BaseException | str) -> None:
    """Print an error once: most occur on all ranks, and the first rank prints them.

    The others wait a moment, in which torchrun ends them if the first has failed, too.
    """
    text = "\n".join(map(printable, str(problem).splitlines()))  # it may quote anybody's names
    if rank() == 0:
        print(f"orderless: {text}", file=sys.stderr)
        return
    if not isinstance(problem, RankLost):
        time.sleep(2.0)
    print(f"orderless: rank {rank()}: {text}", file=sys.stderr)


def _by_the_first(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def unless_another(self: SharedStore, *args: Any, **options: Any) -> None:
        if self.first:
            method(self, *args, **options)

    return unless_another


class SharedStore(Store):
    """A run directory that the first rank writes and all ranks read."""

    def __init__(self, directory: str | Path, group: Any) -> None:
        super().__init__(directory)
        self.group, self.first = group, dist.get_rank(group) == 0

    prepare = _by_the_first(Store.prepare)
    tidy = _by_the_first(Store.tidy)
    write_cell = _by_the_first(Store.write_cell)
    write_snapshots = _by_the_first(Store.write_snapshots)
    save_checkpoint = _by_the_first(Store.save_checkpoint)
    drop_checkpoints = _by_the_first(Store.drop_checkpoints)

    @contextmanager
    def lock(self) -> Iterator[str]:
        """The first rank's lock; the others see whether it is their directory, too."""
        if self.first:
            with super().lock() as mark:
                self._broadcast(torch.tensor(list(mark.encode())))
                yield mark
            return
        mark = bytes(self._broadcast(torch.zeros(32, dtype=torch.int64)).tolist()).decode()
        lock = self.directory / LOCK
        if not lock.is_file() or lock.read_text() != mark:
            raise StoreError(
                f"rank {rank()} does not see the first rank's {self.directory}: choose an --out "
                "that all machines share"
            )
        yield mark

    def finished(self) -> dict[str, dict[str, Json]]:
        with self._after_the_first():
            return super().finished()

    def load_checkpoint(self, name: str, progress: Any) -> Any:
        with self._after_the_first():
            return super().load_checkpoint(name, progress)

    def agrees(self, now: bool) -> bool:
        return bool(self._broadcast(torch.tensor(now)))

    def _broadcast(self, values: Tensor) -> Tensor:
        """The first rank's values."""
        with talking():
            dist.broadcast(values, group=self.group, group_src=0)
        return values

    @contextmanager
    def _after_the_first(self) -> Iterator[None]:
        """What follows is done by the first rank, then by the others; then all go on."""
        if not self.first:
            self._meet()
        yield
        if self.first:
            self._meet()
        self._meet()

    def _meet(self) -> None:
        with talking():
            dist.all_reduce(torch.zeros(()), group=self.group)
