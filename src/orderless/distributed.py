"""The exact head over processes of this machine, or over a Ray Data dataset.

    sum_t phi(t) phi(t)^T = sum over shards of the sum over a shard's samples

Sums on a grid are exact. So the result is the same to the bit however the data is cut, in whatever
order the parts arrive, and if a part is computed twice because its worker was lost.
"""

import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain, islice
from multiprocessing import cpu_count, get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .exact import ExactHead

Job = Callable[[Any], bytes]
_ATTEMPTS = 3  # pools of processes that may break before a fit gives up


def fit(
    head: ExactHead,
    data: Any,
    read: Callable[[Any], Any] | None = None,
    *,
    workers: int | None = None,
    progress: Callable[[float], None] = lambda samples: None,
) -> ExactHead:
    """A head with the data of `head` and all of `data`: that of one `update`, to the bit.

    Args:
        head: an exact head, with or without data. It does not change.
        data: shards, such as paths or pairs (x, y); or a Ray Data dataset (extra `ray`), whose
            blocks are the shards.
        read: from a shard to x `[B, ...]` and y `[B]` (tensors or arrays), or to an iterator of
            such pairs. By default a shard is such a pair, and a block has the columns "x" and "y".
        workers: processes at a time; by default one per core. 1: this process alone.
        progress: called with the number of samples so far.

    >>> head = ol.ExactHead("linear", classes=2)
    >>> shards = [(torch.eye(3), torch.tensor([0, 1, 1])), (torch.ones(1, 3), torch.tensor([0]))]
    >>> ol.distributed.fit(head, shards, workers=1).samples
    4
    """
    on_ray = hasattr(data, "map_batches")
    # the bits of padded maps may depend on the number of threads
    threads = torch.get_num_threads() if head.grid.padded or workers == 1 else 1
    job = partial(_part, head.holding(None), read or (_columns if on_ray else tuple), threads)
    if on_ray:
        parts = _by_ray(job, data, workers)
    elif workers == 1:
        parts = map(job, data)
    else:
        parts = _by_processes(job, data, cpu_count() if workers is None else workers)
    total = head
    for part in parts:
        sums, messages = pickle.loads(part)
        for message in messages:
            warnings.warn(message, stacklevel=2)
        total = total + head.holding(sums)
        progress(total.samples - head.samples)
    return total


def _part(empty: ExactHead, read: Callable[[Any], Any], threads: int, shard: Any) -> bytes:
    """The sums of one shard and what their computation warned of, pickled."""
    torch.set_num_threads(threads)
    part = empty.holding(None)
    given = read(shard)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for x, y in [given] if isinstance(given, tuple) else given:
            if len(x):
                part.update(_tensor(x), _tensor(y))
    return pickle.dumps((part.sums, [str(warning.message) for warning in caught]))


def _by_ray(job: Job, dataset: Any, workers: int | None) -> Iterator[bytes]:
    """One part per block. Ray repeats what was lost with a worker or a machine."""
    from ray.data import TaskPoolStrategy

    whole_blocks = {"batch_size": None, "batch_format": "numpy"}
    tasks = TaskPoolStrategy(workers) if workers else None
    parts = dataset.map_batches(lambda x: {"part": [job(x)]}, compute=tasks, **whole_blocks)
    return (row["part"] for row in parts.iter_rows())


def _by_processes(job: Job, shards: Iterable[Any], workers: int) -> Iterator[bytes]:
    """One part per shard. Shards that a killed process has not finished are computed again."""
    waiting: Iterator[tuple[int, Any]] = enumerate(shards)
    unfinished: dict[int, Any] = {}
    for _ in range(_ATTEMPTS):
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (pickle.dumps(job),))
        running: dict[Future[bytes], int] = {}
        try:
            while True:
                for number, shard in islice(waiting, 2 * workers - len(running)):
                    unfinished[number] = shard
                    running[pool.submit(_work, shard)] = number
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    part = future.result()
                    del unfinished[running.pop(future)]
                    yield part
        except BrokenProcessPool:
            waiting = chain(list(unfinished.items()), waiting)
        finally:
            pool.shutdown(cancel_futures=True)
    raise MemoryError(f"worker processes were killed {_ATTEMPTS} times: use fewer of them")


_job: Job  # of a worker process


def _begin(job: bytes) -> None:
    global _job
    _job = pickle.loads(job)


def _work(shard: Any) -> bytes:
    return _job(shard)


def _columns(block: Mapping[str, Any]) -> tuple[Any, Any]:
    if not {"x", "y"} <= block.keys():
        raise ValueError(f"the dataset has the columns {list(block)} but not x and y: give read=")
    return block["x"], block["y"]


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    values = np.asarray(values)
    return torch.from_numpy(np.array(values.tolist() if values.dtype == object else values))
