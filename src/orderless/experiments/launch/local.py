"""Cells in several processes at once; the same files as one after another."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import Any

import torch

from ...methods import find_method
from ..course import Cell
from ..determinism import deterministic
from ..record import CellRecord
from ..runs import course_of
from ..scenarios import Scenarios
from ..store import Store, StoreError

Warned = list[Warning | str]

_scenarios: Scenarios | None = None  # of this worker, loaded once
_steps: Any = None  # how many all workers have taken


def automatic_workers(cells: int, device: torch.device, bytes_each: int) -> int:
    """A process per core where cells and half the memory suffice; one on a GPU, which fills it."""
    if device.type == "cuda":
        return 1
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores, cells, memory // 2 // bytes_each))


@contextmanager
def one_thread() -> Iterator[None]:
    """Cells are small and there are many: a thread each, so that neither cores nor --workers
    change a sum, and threads that wait for each other on a busy machine do not cost a hundredfold.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_in_processes(
    cells: list[Cell],
    scenarios: Scenarios,
    store: Store,
    workers: int,
    options: dict[str, Any],
    tick: Callable[[int], None] = lambda steps: None,
) -> Iterator[tuple[Cell, CellRecord]]:
    """Finished cells as they come. Processes are spawned: CUDA does not survive a fork."""
    context = get_context("spawn")
    # No lock, which a worker that is killed would hold for ever: a step may go uncounted.
    steps = context.RawValue("q", 0)
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(scenarios, steps))
    try:
        with _deaf_children():
            longest_first = sorted(cells, key=lambda cell: not find_method(cell.method).slow)
            futures = {pool.submit(_run, cell, store, options): cell for cell in longest_first}
        waiting, told = set(futures), 0
        while waiting:
            done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            taken = steps.value
            tick(taken - told)
            told = taken
            for future in done:
                record, warned = future.result()
                for message in warned:
                    warnings.warn(message, stacklevel=2)
                yield futures[future], record
    except BrokenProcessPool:
        raise StoreError(
            f"a worker process was killed, perhaps for lack of memory: use fewer than {workers} "
            "--workers; the same command goes on from here"
        ) from None
    except BaseException:
        # An interrupt, or a cell that failed. What runs has its checkpoint and need not end.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started here never hear Ctrl-C, which a terminal sends to all: we end them."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(scenarios: Scenarios, steps: Any) -> None:
    global _scenarios, _steps
    torch.set_num_threads(1)
    _scenarios, _steps = scenarios, steps
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """A run that was killed must not go on writing behind the back of the next one."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(cell: Cell, store: Store, options: dict[str, Any]) -> tuple[CellRecord, Warned]:
    assert _scenarios is not None
    counted = {**options, "run": {**options["run"], "tick": _count}}
    return compute(cell, _scenarios, store, counted)


def _count(steps: int) -> None:
    _steps.value += steps


def compute(
    cell: Cell, scenarios: Scenarios, store: Store, options: dict[str, Any]
) -> tuple[CellRecord, Warned]:
    """The record, and what was warned about: the parent says it, once for all."""
    with deterministic(options["deterministic"]), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        run = course_of(cell, scenarios[cell.seed], store, **options["run"])
        record = run.run(options["command"], tensorboard=options["tensorboard"])
    return record, [each.message for each in caught]
