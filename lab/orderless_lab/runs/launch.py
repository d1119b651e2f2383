"""Cells on this machine: one after another, or in several processes, with the same results."""

from __future__ import annotations

import math
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple

import torch

from orderless.cli.progress import Countdown
from orderless.ensemble.device import one_thread, same_kernels

from ..methods.registry import load_plugins
from ..suites.registry import find_suite
from .cell import Cell, CellRecord
from .store import Store, StoreError

Tick = Callable[[int], None]


class Item(NamedTuple):
    """A cell to compute."""

    cell: Cell
    directory: Path
    command: str  # recorded with the result
    bytes_needed: int


class Done(NamedTuple):
    """A cell that was computed; `record` is None if another run has computed it, or does."""

    item: Item
    record: CellRecord | None
    warned: list[Warning | str]


@dataclass(frozen=True)
class Job:
    """How cells are computed. Every process has a copy."""

    root: str | None = None
    device: str = "cpu"
    checkpoint_every: float = 60.0
    deterministic: bool = False
    plugins: tuple[str, ...] = ()

    def compute(self, item: Item, tick: Tick = lambda steps: None) -> CellRecord | None:
        """Compute a cell and write its record, unless another process has its lock."""
        load_plugins(self.plugins)
        cell = item.cell
        store = Store(item.directory)
        with store.claim(cell.name) as ours, deterministic(self.deterministic):
            if not ours or store.cell_path(cell.name).exists():
                return None
            suite = find_suite(cell.benchmark)
            tasks = suite.tasks(cell.variant, cell.settings, cell.seed, self.root, self.device)
            options: dict[str, Any] = {"checkpoint_every": self.checkpoint_every, "tick": tick}
            return suite.runner(cell, tasks, store, **options).run(item.command)


@dataclass
class Listener:
    """Functions that are called during a run, such as those of a progress bar."""

    begin: Callable[[int, int], None] = lambda finished, total: None
    start: Callable[[Cell], None] = lambda cell: None
    tick: Tick = lambda steps: None
    done: Callable[[Cell, CellRecord], None] = lambda cell, record: None
    say: Callable[[str], None] = lambda text: None


class RunProgress(Countdown, Listener):
    """The `listener` of a run: a bar, or a line for every cell. The time left appears with the
    first finished cell."""

    def __init__(self) -> None:
        super().__init__(every=math.inf)
        self._finished = 0
        self._total = 0
        self._steps = 0
        self._title = ""

    def begin(self, finished: int, total: int) -> None:  # type: ignore[override]
        self._finished = finished
        self._total = total
        self.tell(finished, total, "")  # starts the clock after the preparation

    def start(self, cell: Cell) -> None:  # type: ignore[override]
        self._steps = 0
        self._title = cell.title
        self.tell(self._finished, self._total, self._title)

    def tick(self, steps: int) -> None:  # type: ignore[override]
        before = self._steps
        self._steps += steps
        if before // 50 != self._steps // 50:
            self.tell(self._finished, self._total, f"{self._title}, step {self._steps}")

    def done(self, cell: Cell, record: CellRecord) -> None:  # type: ignore[override]
        self._finished += 1
        self.tell(self._finished, self._total, cell.title)
        if self.on_a_terminal:
            return
        final = record.final()
        average = math.nan if final is None else final.mean()
        score = f"return {average:.3f}"
        if record.unit == "accuracy":
            score = f"average {100 * average:.2f}"
        if record.died_at is not None:
            score += f", no finite network left at step {record.died_at}"
        place = f"[{self._finished}/{self._total}] {cell.title}"
        self.say(f"{place}: {score}, {record.duration:.1f} s{self.left}")


def launch(
    items: Sequence[Item], job: Job, listener: Listener, workers: int | None = None
) -> Iterator[Done]:
    """Compute cells in processes with one thread each; None: as many as the machine allows."""
    if workers is None:
        workers = automatic_workers(items, job.device)
    workers = min(workers, max(1, len(items)))
    if workers == 1:
        yield from in_order(items, job, listener)
    else:
        yield from in_processes(items, job, workers, listener)


def automatic_workers(items: Sequence[Item], device: str) -> int:
    """At most one process per core, as cells and half the memory allow; one per GPU."""
    if device.startswith("cuda"):
        return 1 if ":" in device else max(1, torch.cuda.device_count())
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    largest = max((item.bytes_needed for item in items), default=1)
    return max(1, min(cores, len(items), available_memory() // 2 // largest))


def available_memory() -> int:
    """Bytes of this machine's memory, or of the share that its scheduler or container allows."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in cgroup_limits():
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(limits)


def cgroup_limits(root: Path = Path("/sys/fs/cgroup")) -> Iterator[Path]:
    """The files with the limits of this process's control group and of those around it."""
    yield root / "memory" / "memory.limit_in_bytes"  # version 1
    try:
        own = Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].rpartition(":")[2]
    except (OSError, IndexError):
        own = "/"
    group = root / own.strip("/")
    while True:
        yield group / "memory.max"  # version 2
        if group == root:
            return
        group = group.parent


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


def in_order(items: Sequence[Item], job: Job, listener: Listener) -> Iterator[Done]:
    """Compute cells one after another in this process."""
    with one_thread():
        for item in items:
            listener.start(item.cell)
            yield Done(item, job.compute(item, listener.tick), [])


def in_processes(
    items: Sequence[Item], job: Job, workers: int, listener: Listener
) -> Iterator[Done]:
    """Compute cells in processes, which are spawned, since CUDA does not survive a fork."""
    context = get_context("spawn")
    number = context.Value("i", 0)
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(job, number))
    try:
        # workers ignore Ctrl-C, which terminals send to all processes; the parent ends them
        with handled(signal.SIGINT, signal.SIG_IGN):
            waiting = {pool.submit(_compute, item) for item in items}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise StoreError(
            f"a worker process was killed, perhaps for lack of memory: use fewer than {workers}"
            " --workers; the same command resumes"
        ) from None
    except BaseException:
        # an interrupt, or a failed cell; running cells have checkpoints and need not finish
        for process in list((pool._processes or {}).values()):  # noqa: SLF001
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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


_job = Job()  # of this worker process


def _begin(job: Job, number: Any) -> None:
    """Prepare a worker process; those on GPUs take turns with the devices."""
    global _job
    torch.set_num_threads(1)
    with number.get_lock():
        place = number.value
        number.value += 1
    if job.device == "cuda" and torch.cuda.device_count() > 1:
        job = replace(job, device=f"cuda:{place % torch.cuda.device_count()}")
    _job = job
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """Exit with the parent: a killed run must not write beside the next one."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _compute(item: Item) -> Done:
    return compute(item, _job)


def compute(item: Item, job: Job) -> Done:
    """Compute a cell; its warnings are for the parent process to show."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        record = job.compute(item)
    return Done(item, record, [each.message for each in caught])
