"""Runs under torchrun: all ranks compute the same cells, each with its share of the particles.

Only the first rank takes the lock, writes files and shows progress. The others read the run
directory after it, so all ranks need access to it.
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

from orderless.ensemble.sharding import RankLost, talking
from orderless.escaping import printable
from orderless_lab.storage.typed import Json

from ..store import Store, StoreError

PATIENCE = timedelta(minutes=10)  # timeout for a rank that does not answer


def rank() -> int:
    """The rank of this process; 0 without torchrun."""
    return int(os.environ["RANK"]) if dist.is_torchelastic_launched() else 0


def ranks() -> int:
    return int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 1


@contextmanager
def joined(device: torch.device) -> Iterator[Any]:
    """Join the process group of a run under torchrun; yields None without torchrun."""
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
            # decisions on the host use gloo, so that no GPU has to wait
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=PATIENCE)
        yield dist.group.WORLD
        with talking():
            # wait for all: if a thread of gloo releases the last result while Python exits, the
            # process crashes
            dist.barrier()
        dist.destroy_process_group()
    except RankLost as error:
        before = signal.SIG_IGN  # torchrun is about to send SIGTERM; print the message first
        raise RankLost(
            "another rank has ended or does not answer; the same command resumes from the last "
            "checkpoint, with any number of ranks"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _told_to_end(*_: Any) -> None:
    raise RankLost("torchrun ends all ranks when one has ended")


def complain(problem: BaseException | str) -> None:
    """Print an error once: most errors occur on all ranks, and the first rank prints them.

    The other ranks wait two seconds, in which torchrun ends them if the first rank has failed.
    """
    text = "\n".join(map(printable, str(problem).splitlines()))  # it may quote names of users
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
        """The first rank takes the lock; the others check that they see the same directory."""
        if self.first:
            with super().lock() as mark:
                self._broadcast(torch.tensor(list(mark.encode())))
                yield mark
            return
        mark = bytes(self._broadcast(torch.zeros(32, dtype=torch.int64)).tolist()).decode()
        if self.mark() != mark:
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
        """The values of the first rank."""
        with talking():
            dist.broadcast(values, group=self.group, group_src=0)
        return values

    @contextmanager
    def _after_the_first(self) -> Iterator[None]:
        """Run the block on the first rank, then on the others; then synchronise."""
        if not self.first:
            self._meet()
        yield
        if self.first:
            self._meet()
        self._meet()

    def _meet(self) -> None:
        with talking():
            dist.all_reduce(torch.zeros(()), group=self.group)
