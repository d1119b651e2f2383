"""`fit`: the data of many shards in one exact filter, as if one machine had seen them all.

    sum_t phi(t) phi(t)^T = sum over shards of the sum over a shard's samples

Sums on a grid have no rounding. So neither the cut, nor the order in which parts are merged, nor a
part that was computed twice because its worker was lost changes a bit of the result.
"""

import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ..experiments.engine import Report
from ..experiments.launch.local import Processes
from ..filters import RaoBlackwellizedFilter
from ..filters.exact.statistics import HeadStatistics
from ..storage import Directory
from .parts import Parts, Piece, Reader, merged

Progress = Callable[[int, int | None, str], None]
"""Called with parts done, parts in all (None: nobody knows yet), and what there is to say."""


def fit(
    make_filter: Callable[[], RaoBlackwellizedFilter],
    dataset: Any,
    *,
    read: Reader | None = None,
    directory: str | Path | None = None,
    workers: int | None = None,
    gpus: float = 0.0,
    progress: Progress = lambda done, total, text: None,
) -> RaoBlackwellizedFilter:
    """An exact filter with all of a data set: to the bit what `update` with all of it gives.

    Args:
        make_filter: makes a filter without data, the same every time. Called in every process.
        dataset: a Ray Data dataset (extra `ray`), of which every block is a part; or a list of
            shards, paths for example, whose parts are computed by processes of this machine.
        read: from a shard to x `[B, ...]` and y `[B]` (tensors or arrays), or to an iterator of
            such pairs, each small enough for the memory. With Ray, from a block's columns, a
            dictionary of arrays; unless given, the columns "x" and "y".
        directory: keeps a file for each finished pair: a fit that was stopped goes on from there,
            and one with more data computes only what is new. Of several machines, those that do
            not see it keep no files.
        workers: at most so many parts at a time; one per core unless given.
        gpus: per part, with Ray.
        progress: hears how far it has come.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    rb = make_filter()
    if not isinstance(rb, RaoBlackwellizedFilter) or rb.samples:
        raise TypeError(f"make_filter must make an exact filter without data, got {rb!r}")
    if rb.grid.padded and rb.particles.device.type == "cpu" and torch.get_num_threads() > 1:
        raise ValueError(
            "maps that are not exact give other bits with another number of threads, and workers "
            "have one each: call torch.set_num_threads(1) before"
        )
    on_ray = hasattr(dataset, "iter_internal_ref_bundles")
    shards = isinstance(dataset, Sequence) and not isinstance(dataset, str | bytes)
    if not on_ray and not (shards and read is not None):
        raise TypeError(
            "dataset must be a Ray Data dataset, or a list of shards and read= what reads one, got "
            f"{type(dataset).__name__} and read={read!r}"
        )
    with _folder(directory, temporary=not on_ray) as folder:
        parts = Parts(make_filter, read or _columns, folder, rb.fingerprint)
        if on_ray:
            from .ray import fit_blocks

            return rb.holding(fit_blocks(parts, dataset, workers, gpus, progress))
        return rb.holding(_fit_shards(parts, dataset, workers, progress))


@contextmanager
def _folder(directory: str | Path | None, temporary: bool) -> Iterator[Path | None]:
    """Where parts are kept, for this fit alone."""
    if directory is not None:
        store = Directory(directory)
        store.prepare("parts")
        with store.lock():
            yield store.directory.resolve() / "parts"
    elif temporary:
        with tempfile.TemporaryDirectory(prefix="orderless-") as folder:
            yield Path(folder)
    else:
        yield None


def _fit_shards(
    parts: Parts, shards: Sequence[Any], workers: int | None, progress: Progress
) -> HeadStatistics | None:
    """On processes of this machine; what they have computed comes back as files."""
    cells = [
        SimpleNamespace(content=shard, name=str(number), title=str(number), slow=False)
        for number, shard in enumerate(shards)
    ]
    work: Any = parts  # of the engine's work, what a launcher needs
    launcher = Processes(workers)
    if launcher.count(len(cells), work) > 1:
        _check_sendable(parts)
    done, samples, total = 0, 0, None

    def tick(more: int) -> None:
        nonlocal samples
        samples += more
        progress(done, len(cells), f"{samples:,} samples")

    for _, files in launcher.launch(cells, work, None, Report(tick=tick)):
        total = merged([total, *map(parts.load, files)])
        done += 1
        tick(0)
    return total


def _check_sendable(parts: Parts) -> None:
    try:
        pickle.dumps(parts)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"other processes cannot get make_filter or read ({error}): make them functions of a "
            "module, or use workers=1"
        ) from None


def _columns(batch: Mapping[str, Any]) -> Piece:
    if "x" not in batch or "y" not in batch:
        raise ValueError(
            f"the dataset has the columns {', '.join(batch)} but not x and y: give read=, which "
            "makes x and y of them"
        )
    return batch["x"], batch["y"]
