"""Cells in several processes at once; the same files as one after another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import torch

from .cell import Cell, CellRun
from .scenarios import Scenarios
from .store import Store

_scenarios: Scenarios | None = None  # of this worker, loaded once


def run_in_processes(
    cells: list[Cell], scenarios: Scenarios, store: Store, workers: int, options: dict[str, Any]
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Finished cells as they come. Processes are spawned: CUDA does not survive a fork."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_begin, initargs=(scenarios, threads)
    )
    futures: dict[Future[dict[str, Any]], Cell] = {}
    try:
        futures = {pool.submit(_run, cell, store, options): cell for cell in cells}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(scenarios: Scenarios, threads: int) -> None:
    global _scenarios
    torch.set_num_threads(threads)
    _scenarios = scenarios


def _run(cell: Cell, store: Store, options: dict[str, Any]) -> dict[str, Any]:
    assert _scenarios is not None
    command = options["command"]
    return CellRun(cell, _scenarios[cell.seed], store, **options["run"]).run(command)
