"""Cells on this machine: one after another, or in several processes, with the same results."""

import os
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any

import torch

from orderless.ensemble.precision import one_thread, same_kernels

from ..engine import C, Record, Report, Tick, Work
from ..store import Store, StoreError

Warned = list[Warning | str]

_work: Any = None  # of this worker process
_steps: Any = None  # the number of steps of all workers


def automatic_workers(cells: int, device: torch.device, bytes_each: int) -> int:
    """At most one process per core, as cells and half the memory allow; one on a GPU."""
    if device.type == "cuda":
        return 1
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(cores, cells, machine_memory() // 2 // bytes_each))


def machine_memory() -> int:
    """The memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Use deterministic kernels on a GPU, if wanted; an operation without one warns."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        with same_kernels():
            yield
    finally:
        torch.set_deterministic_debug_mode(before)


@dataclass(frozen=True)
class InOrder:
    """Computes cells one after another in this process, with one thread or torch's threads."""

    one_thread: bool = True

    def launch(
        self, cells: Sequence[C], work: Work[C], store: Any, report: Report
    ) -> Iterator[tuple[C, Record]]:
        with one_thread(self.one_thread):
            for cell in cells:
                report.start(cell)
                yield cell, work.compute(cell, store, report.tick)


@dataclass(frozen=True)
class Processes:
    """Computes cells in processes with one thread each; None: as many as cores and memory allow."""

    workers: int | None = None

    def launch(
        self, cells: Sequence[C], work: Work[C], store: Any, report: Report
    ) -> Iterator[tuple[C, Record]]:
        """Yield finished cells. Processes are spawned, since CUDA does not survive a fork."""
        workers = min(self.count(len(cells), work), max(1, len(cells)))
        if workers == 1:
            yield from InOrder().launch(cells, work, store, report)
            return
        context = get_context("spawn")
        # without a lock, which a killed worker would never release; a step may be missed
        steps = context.RawValue("q", 0)
        pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(work, steps))
        try:
            # workers ignore Ctrl-C, which terminals send to all processes; the parent ends them
            with handled(signal.SIGINT, signal.SIG_IGN):
                longest_first = sorted(cells, key=lambda cell: not cell.slow)
                futures = {pool.submit(_run, cell, store): cell for cell in longest_first}
            waiting, told = set(futures), 0
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                taken = steps.value
                report.tick(taken - told)
                told = taken
                for future in done:
                    record, warned = future.result()
                    for message in warned:
                        warnings.warn(message, stacklevel=2)
                    yield futures[future], record
        except BrokenProcessPool:
            raise StoreError(
                f"a worker process was killed, perhaps for lack of memory: use fewer than {workers}"
                " --workers; the same command resumes"
            ) from None
        except BaseException:
            # an interrupt, or a failed cell; running cells have checkpoints and need not finish
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def count(self, cells: int, work: Work[Any]) -> int:
        """The number of processes for this many cells."""
        if self.workers is not None:
            return self.workers
        return automatic_workers(cells, work.device, work.memory())


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Install a signal handler; has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _begin(work: Any, steps: Any) -> None:
    global _work, _steps
    torch.set_num_threads(1)
    _work, _steps = work, steps
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """Exit with the parent: a killed run must not write beside the next one."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(cell: Any, store: Store) -> tuple[Record, Warned]:
    return compute(cell, _work, store, _count)


def _count(steps: int) -> None:
    _steps.value += steps


def compute(cell: C, work: Work[C], store: Store, tick: Tick) -> tuple[Record, Warned]:
    """Compute a cell; returns its record and the warnings, which the parent process shows."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        record = work.compute(cell, store, tick)
    return record, [each.message for each in caught]
