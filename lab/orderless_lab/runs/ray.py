"""Cells as Ray tasks, on one machine or on many, with the same results as in one process.

A worker that sees the run directory (it reads the mark that lies there) writes to it, and a lost
cell resumes on any machine. Any other worker computes in the user's cache on its machine and sends
its files to the driver. Ray itself tries a cell again whose worker was lost.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from orderless.ensemble.device import one_thread
from orderless.errors import UserError
from orderless.io import load, user_cache

from .launch import Done, Item, Job, Listener, compute
from .store import Store, StoreError, versions

RETRIES = 5  # of a cell whose worker or machine was lost
OBJECTS = 2**28  # bytes of the object store of a local Ray; records are small


@dataclass(frozen=True)
class Ray:
    """The address of Ray, and the resources of a cell besides one CPU."""

    address: str | None = None  # None: $RAY_ADDRESS, or a local Ray if that is not set
    gpus: float = 0.0  # per cell; 0.25 puts four cells on one
    at_once: int | None = None  # at most this many cells at a time

    def __post_init__(self) -> None:
        if not 0 <= self.gpus < float("inf"):
            raise UserError(f"GPUs per cell must be 0 or more, got {self.gpus}")

    def launch(self, items: Sequence[Item], job: Job, listener: Listener) -> Iterator[Done]:
        ray = import_ray()
        with self.connected(ray):
            waiting = list(items)
            running: dict[Any, Item] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < (self.at_once or len(items)):
                        item = waiting.pop(0)
                        running[self._submit(ray, item, job)] = item
                    ready, _ = ray.wait(list(running))
                    for reference in ready:
                        yield self._result(ray, reference, running.pop(reference))
            finally:  # after an interrupt or a failed cell, running cells have checkpoints
                for reference in running:
                    ray.cancel(reference, force=True)

    def _submit(self, ray: ModuleType, item: Item, job: Job) -> Any:
        options = {"num_cpus": 1, "num_gpus": self.gpus, "memory": item.bytes_needed}
        task = ray.remote(max_retries=RETRIES, **options)(_compute)
        return task.remote(item, job, Store(item.directory).mark(), versions())

    def _result(self, ray: ModuleType, reference: Any, item: Item) -> Done:
        try:
            done, snapshots = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise StoreError(
                f"{item.cell.name} was lost {RETRIES + 1} times with its worker "
                f"({type(error).__name__}), perhaps for lack of memory; the same command resumes"
            ) from None
        store = Store(item.directory)
        name = item.cell.name
        if done.record is not None and not store.cell_path(name).exists():
            if snapshots is not None:
                store.write_snapshots(name, snapshots)
            store.write_cell(name, done.record)
        return done

    @contextmanager
    def connected(self, ray: ModuleType) -> Iterator[None]:
        """Connect to Ray, unless the caller is connected already."""
        if ray.is_initialized():
            yield
            return
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        local = {"include_dashboard": False, "object_store_memory": OBJECTS}
        try:
            _knock(address)
            own = local if address == "local" else {}
            ray.init(address, log_to_driver=False, logging_level="ERROR", **own)
        except Exception as error:  # Ray raises many types if a node does not start
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise StoreError(f"cannot use Ray at {address!r}: {reason}") from None
        try:
            yield
        finally:
            ray.shutdown()


def import_ray() -> ModuleType:
    # no usage statistics, and no warning about a future default
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise StoreError(
            "--launcher ray needs the package ray: run `pip install 'orderless-lab[ray]'`"
        ) from None
    return ray


def _knock(address: str) -> None:
    """Check that the address answers; Ray itself waits for many minutes."""
    if address not in ("local", "auto"):
        parts = urlsplit(address if "://" in address else f"//{address}")
        if not parts.hostname or not parts.port:
            raise ValueError("give HOST:PORT, ray://HOST:PORT or auto")
        socket.create_connection((parts.hostname, parts.port), timeout=10.0).close()


def _compute(item: Item, job: Job, mark: str, wanted: dict[str, str]) -> tuple[Done, Any]:
    """Compute a cell in a worker: the record, and the snapshots if only the worker has them."""
    if versions() != wanted:
        raise StoreError(f"{platform.node()} has {versions()}, not {wanted}: install the same")
    name = item.cell.name
    if (item.directory / "cells").is_dir() and Store(item.directory).mark() == mark:
        with one_thread():
            return compute(item, job), None
    store = Store(user_cache() / "checkpoints" / mark)
    store.prepare()
    store.cell_path(name).unlink(missing_ok=True)  # of a worker that was lost before it sent it
    with one_thread():
        done = compute(item._replace(directory=store.directory), job)
    path = store.snapshots_path(name)
    snapshots = load(path) if path.exists() else None
    for sent in (path, store.cell_path(name)):
        sent.unlink(missing_ok=True)
    return done, snapshots
