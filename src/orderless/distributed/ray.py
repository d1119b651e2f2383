"""Fit one part per block of a Ray Data dataset, and merge the parts in a tree of Ray tasks.

Ray repeats tasks whose worker or machine was lost. Sums stay in its object store until they are
merged. To keep them few, at most one block per core of the cluster is computed at a time.
"""

import secrets
import warnings
from typing import Any

from orderless_lab.experiments.launch.ray import RETRIES, import_ray, worker_errors

from ..ensemble.precision import one_thread
from ..exact.sums import HeadSums
from .parts import Parts, merged

FAN = 4  # parts merged by one task

Part = tuple[HeadSums | None, set[str]]  # sums, and the texts of warnings


def fit_blocks(
    parts: Parts, dataset: Any, workers: int | None, gpus: float, progress: Any
) -> HeadSums | None:
    """The sums over all blocks."""
    ray = import_ray()
    compute = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_part)
    merge = ray.remote(num_cpus=0, max_retries=RETRIES)(_merge)
    most = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    shared = ray.put((secrets.token_hex(8), parts))
    levels: list[list[Any]] = [[]]  # sums of FAN^0, FAN^1, ... blocks that are not merged yet
    working: list[Any] = []
    done = 0

    def add(part: Any, level: int = 0) -> None:
        if level == len(levels):
            levels.append([])
        levels[level].append(part)
        if len(levels[level]) == FAN:
            add(merge.remote(*levels[level]), level + 1)
            levels[level] = []

    def wait(allowed: int) -> None:
        nonlocal working, done
        while len(working) > allowed:
            ready, working = ray.wait(working)
            done += len(ready)
            progress(done, None, f"{done:,} blocks")

    with worker_errors("a block", ": use smaller blocks"):
        for bundle in dataset.iter_internal_ref_bundles():
            for block in bundle.block_refs:
                wait(most - 1)
                working.append(compute.remote(block, shared))
                add(working[-1])
        wait(0)
        total, warned = ray.get(merge.remote(*[part for level in levels for part in level]))
    for message in sorted(warned):
        warnings.warn(message, stacklevel=3)
    return total


_known: tuple[str, Any] = ("", None)  # of a worker process, so that a filter is made once per fit


def _part(block: Any, shared: tuple[str, Parts]) -> Part:
    from ray.data.block import BlockAccessor

    global _known
    if _known[0] != shared[0]:
        _known = shared
    parts = _known[1]
    batch = BlockAccessor.for_block(block).to_batch_format("numpy")
    with one_thread(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        total = merged([parts.sums(x, y, parts.path(x, y)) for x, y in parts.pieces(batch)])
    return total, {str(each.message) for each in caught}


def _merge(*some: Part) -> Part:
    return merged(total for total, _ in some), set().union(*(warned for _, warned in some))
