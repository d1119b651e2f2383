"""`fit`: fit one exact filter to the data of many shards.

    sum_t phi(t) phi(t)^T = sum over shards of the sum over a shard's samples

Sums on a grid are exact. So the result is the same to the bit however the data is cut, in whatever
order the parts are merged, and if a part is computed twice because its worker was lost.
"""

import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from orderless_lab.experiments.engine import Report
from orderless_lab.experiments.launch.local import Processes
from orderless_lab.storage import Directory

from ..exact import ExactHead
from ..exact.sums import HeadSums
from .parts import Parts, Piece, Reader, merged

Progress = Callable[[int, int | None, str], None]
"""Called with the parts done, the parts in total (None if unknown), and a text."""


def fit(
    make_filter: Callable[[], ExactHead],
    dataset: Any,
    *,
    read: Reader | None = None,
    directory: str | Path | None = None,
    workers: int | None = None,
    gpus: float = 0.0,
    progress: Progress = lambda done, total, text: None,
) -> ExactHead:
    """Fit an exact filter to a data set; the result is that of one `update`, to the bit.

    Args:
        make_filter: makes a filter without data, the same every time. Called in every process.
        dataset: a Ray Data dataset (extra `ray`), of which every block is a part; or a list of
            shards, such as paths, whose parts are computed by processes of this machine.
        read: maps a shard to x `[B, ...]` and y `[B]` (tensors or arrays), or to an iterator of
            such pairs, each of which fits into memory. With Ray, maps a dictionary of arrays, the
            columns of a block; by default it takes the columns "x" and "y".
        directory: folder for a file per finished pair. A stopped fit resumes from these files, and
            a fit with more data computes only the new pairs. Machines that do not see the folder
            write no files.
        workers: maximal number of parts at a time; by default one per core.
        gpus: GPUs per part, with Ray.
        progress: called after every step.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    rb = make_filter()
    if not isinstance(rb, ExactHead) or rb.samples:
        raise TypeError(f"make_filter must make an exact head without data, got {rb!r}")
    if rb.grid.padded and rb.grid.device.type == "cpu" and torch.get_num_threads() > 1:
        raise ValueError(
            "the bits of these feature maps depend on the number of threads, and workers have one "
            "each: call torch.set_num_threads(1) before fit"
        )
    on_ray = hasattr(dataset, "iter_internal_ref_bundles")
    shards = isinstance(dataset, Sequence) and not isinstance(dataset, str | bytes)
    if not on_ray and not (shards and read is not None):
        raise TypeError(
            "dataset must be a Ray Data dataset, or a list of shards with a function read=, got "
            f"{type(dataset).__name__} and read={read!r}"
        )
    with _folder(directory, temporary=not on_ray) as folder:
        parts = Parts(make_filter, read or _columns, folder, rb.grid.fingerprint)
        if on_ray:
            from .ray import fit_blocks

            total = fit_blocks(parts, dataset, workers, gpus, progress)
        else:
            total = _fit_shards(parts, dataset, workers, progress)
    return rb.holding(total)


@contextmanager
def _folder(directory: str | Path | None, temporary: bool) -> Iterator[Path | None]:
    """The folder of the parts, locked for this fit."""
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
) -> HeadSums | None:
    """Compute the parts in processes of this machine, which return them as files."""
    cells = [
        SimpleNamespace(content=shard, name=str(number), title=str(number), slow=False)
        for number, shard in enumerate(shards)
    ]
    work: Any = parts  # has those of the engine's methods that a launcher calls
    launcher = Processes(workers)
    if launcher.count(len(cells), work) > 1:
        try:
            pickle.dumps(parts)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"make_filter and read cannot be sent to other processes ({error}): define them in "
                "a module, or use workers=1"
            ) from None
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


def _columns(batch: Mapping[str, Any]) -> Piece:
    if "x" not in batch or "y" not in batch:
        raise ValueError(
            f"the dataset has the columns {', '.join(batch)} but not x and y: give read=, a "
            "function from these columns to x and y"
        )
    return batch["x"], batch["y"]
