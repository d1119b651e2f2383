"""Cells as Ray tasks, on one machine or on many, with the same results as in one process.

Results are sent to the driver, and only the driver writes them. So no shared file system is needed,
and a worker that was considered lost cannot overwrite files.

Checkpoints are large and stay on a disk. A worker that sees the run directory (it reads the mark
that the driver wrote there) writes them to it, and a lost cell resumes on any machine. Otherwise
they are in the user's cache on the worker's machine: a cell resumes there if its process was lost,
and starts again if its machine was lost.
"""

import os
import platform
import socket
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor

from orderless.ensemble.precision import one_thread
from orderless.io import user_cache

from ..engine import C, Record, Report, Work
from ..store import Store, StoreError, versions
from .local import Warned, compute

RETRIES = 5  # of a cell whose worker or machine was lost
OBJECTS = 2**28  # bytes of the object store of a local Ray; records are small

Result = tuple[Record, dict[str, Tensor] | None, Warned]


@dataclass(frozen=True)
class Ray:
    """The address of Ray, and the resources of a cell besides one CPU."""

    address: str | None = None  # None: $RAY_ADDRESS, or a local Ray if that is not set
    gpus: float = 0.0  # per cell; 0.25 puts four cells on one
    at_once: int | None = None  # at most this many cells at a time

    def __post_init__(self) -> None:
        if not 0 <= self.gpus < float("inf"):
            raise ValueError(f"GPUs per cell must be 0 or more, got {self.gpus}")
        if self.at_once is not None and self.at_once < 1:
            raise ValueError(f"at_once must be at least 1, got {self.at_once}")

    def launch(
        self, cells: Sequence[C], work: Work[C], store: Store, report: Report
    ) -> Iterator[tuple[C, Record]]:
        ray = import_ray()
        with self.connected():
            request = {"num_cpus": 1, "num_gpus": self.gpus, "memory": work.memory()}
            _warn_if_nobody_has(ray, request)
            task = ray.remote(max_retries=RETRIES, **request)(_compute)
            meter = ray.remote(num_cpus=0, max_restarts=-1)(_Meter).remote()
            shared = ray.put((work, str(store.directory.resolve()), store.mark(), versions()))
            waiting, running = deque(cells), {}  # type: ignore[var-annotated]
            steps = meter.take.remote()
            try:
                while waiting or running:
                    while waiting and len(running) < (self.at_once or len(cells)):
                        cell = waiting.popleft()
                        running[task.remote(cell, shared, meter)] = cell
                    ready, _ = ray.wait(list(running), timeout=1.0)
                    if ray.wait([steps], timeout=0)[0]:
                        # if the meter's machine was lost, it restarts elsewhere
                        with suppress(ray.exceptions.RayError):
                            report.tick(ray.get(steps))
                        steps = meter.take.remote()
                    for reference in ready:
                        cell = running.pop(reference)
                        with worker_errors(cell.name, "; the same command resumes"):
                            record, snapshots, warned = ray.get(reference)
                        for message in warned:
                            warnings.warn(message, stacklevel=2)
                        if snapshots is not None:
                            store.write_snapshots(cell.name, snapshots)
                        store.write_cell(cell.name, record)
                        yield cell, record
            finally:  # after an interrupt or a failed cell, running cells have checkpoints
                for reference in running:
                    ray.cancel(reference, force=True)
                ray.kill(meter)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect to Ray, unless the caller is connected already."""
        ray = import_ray()
        if ray.is_initialized():
            yield
            return
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        local = {"include_dashboard": False, "object_store_memory": OBJECTS}
        own = local if address == "local" else {}
        try:
            _knock(address)
            ray.init(address, log_to_driver=False, logging_level="ERROR", **own)
        except Exception as error:  # Ray raises many types if a node does not start
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise StoreError(f"cannot use Ray at {address!r}: {reason}") from None
        try:
            yield
        finally:
            ray.shutdown()

    def count(self, cells: int, work: Work[Any]) -> int:
        """The number of cells that are computed at a time."""
        cpus = int(import_ray().cluster_resources().get("CPU", 1))
        return min(cells, self.at_once or cpus)


def import_ray() -> ModuleType:
    # no usage statistics, and no warning about a future default
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise StoreError(
            "--launcher ray needs the package ray: run `pip install 'orderless[ray]'`"
        ) from None
    return ray


def _knock(address: str) -> None:
    """Check that the address answers; Ray itself waits for many minutes."""
    if address not in ("local", "auto"):
        parts = urlsplit(address if "://" in address else f"//{address}")
        if not parts.hostname or not parts.port:
            raise ValueError("give HOST:PORT, ray://HOST:PORT or auto")
        socket.create_connection((parts.hostname, parts.port), timeout=10.0).close()


def _warn_if_nobody_has(ray: ModuleType, request: dict[str, float]) -> None:
    wanted = list(zip(("CPU", "GPU", "memory"), request.values(), strict=True))
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(m.get(name, 0) >= amount for name, amount in wanted) for m in machines):
        warnings.warn(
            f"no machine of this Ray cluster has 1 CPU, {request['num_gpus']:g} GPU and "
            f"{request['memory'] / 2**30:.1f} GiB for a cell: cells wait until one joins",
            stacklevel=3,
        )


@contextmanager
def worker_errors(what: str, advice: str) -> Iterator[None]:
    """Raise what a task itself raised, and a `StoreError` if it was lost with its worker."""
    ray = import_ray()
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise StoreError(
            f"{what} was lost {RETRIES + 1} times with its worker ({type(error).__name__}), "
            f"perhaps for lack of memory{advice}"
        ) from None


_work: Any = None  # of this worker process, which loads the data once


class _Meter:
    """Counts the steps of all workers until the driver reads them."""

    def __init__(self) -> None:
        self._steps = 0

    def add(self, steps: int) -> None:
        self._steps += steps

    def take(self) -> int:
        steps, self._steps = self._steps, 0
        return steps


class _Ticks:
    """Sends steps to the meter, at most one message per second."""

    def __init__(self, meter: Any) -> None:
        self._meter, self._steps, self._sent = meter, 0, time.monotonic()

    def __call__(self, steps: int) -> None:
        self._steps += steps
        if time.monotonic() - self._sent > 1.0:
            self._meter.add.remote(self._steps)
            self._steps, self._sent = 0, time.monotonic()


class WorkerStore(Store):
    """The store of a worker: writes checkpoints, holds results for the driver."""

    def __init__(self, directory: str, mark: str) -> None:
        self.shared = Store(directory).mark() == mark
        super().__init__(directory if self.shared else user_cache() / "checkpoints" / mark)
        self.snapshots: dict[str, Tensor] | None = None
        if not self.shared:
            self.prepare("checkpoints")

    def write_snapshots(self, name: str, snapshots: dict[str, Tensor]) -> None:
        self.snapshots = snapshots

    def write_cell(self, name: str, record: object) -> None:
        if not self.shared:  # otherwise the driver deletes them with the record
            self.drop_checkpoints(name)


def _compute(cell: Any, shared: tuple[Any, ...], meter: Any) -> Result:
    global _work
    work, directory, mark, wanted = shared
    if versions() != wanted:
        raise StoreError(f"{platform.node()} has {versions()}, not {wanted}: install the same")
    _work = _work if _work == work else work
    store = WorkerStore(directory, mark)
    with one_thread():
        record, warned = compute(cell, _work, store, _Ticks(meter))
    return record, store.snapshots, warned
