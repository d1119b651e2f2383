"""One step of the weighted particle filter: N particles over R ranks, or one process of R threads.

    python benchmarks/ranks.py [--ranks 2] [--particles 100] [--hidden 100] [--batch 8]

Ranks are processes of one thread each that communicate through gloo. The ways alternate in one run,
and those that wait do not use the processor.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from filter_step import library
from timing import machine, print_table


def make_step(options: argparse.Namespace, group: Any = None) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.batch, 784, generator=generator)
    y = torch.randint(2, (options.batch,), generator=generator)
    return library(options.hidden, options.particles, x, y, "float32", group=group)


def seconds(step: Callable[[], object], count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - begun) / count


def be_a_rank(rank: int, options: argparse.Namespace, place: str, orders: Any, told: Any) -> None:
    """Make steps on request; the first rank reports the time of each."""
    torch.set_num_threads(1)
    store = dist.FileStore(place, options.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    step = make_step(options, dist.group.WORLD)
    while count := orders[rank].get():
        took = seconds(step, count)
        if rank == 0:
            told.put(took)
    dist.destroy_process_group()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--particles", type=int, default=100)
    arguments.add_argument("--hidden", type=int, default=100)
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--rounds", type=int, default=15)
    options = arguments.parse_args()
    context = multiprocessing.get_context("spawn")
    orders, told = [context.SimpleQueue() for _ in range(options.ranks)], context.SimpleQueue()
    step = make_step(options)

    def threads(count: int) -> Callable[[int], float]:
        def run(steps: int) -> float:
            torch.set_num_threads(count)
            return seconds(step, steps)

        return run

    def ranks(steps: int) -> float:
        for order in orders:
            order.put(steps)
        return told.get()

    ways: dict[str, Callable[[int], float]] = {
        f"{options.ranks} ranks, 1 thread each": ranks,
        f"1 rank, {options.ranks} threads": threads(options.ranks),
        "1 rank, 1 thread": threads(1),
    }
    with tempfile.TemporaryDirectory() as folder:
        rest = options, f"{folder}/store", orders, told
        processes = multiprocessing.spawn(be_a_rank, rest, options.ranks, join=False)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way(options.steps)  # warms up
        for _ in range(options.rounds):
            for name, way in ways.items():
                times[name].append(way(options.steps))
        for order in orders:
            order.put(0)
        processes.join()

    middle = {name: sorted(values)[len(values) // 2] for name, values in times.items()}
    first = next(iter(middle.values()))
    torch.set_num_threads(options.ranks)
    print(f"MLP 784-{options.hidden}-{options.hidden}-2, N={options.particles}, ", end="")
    print(f"batch {options.batch}, float32; {machine(torch.device('cpu'))}\n")
    rows = [[name, f"{1e3 * each:.3f}", f"{each / first:.2f}x"] for name, each in middle.items()]
    print_table(["way", "ms per step", f"{options.ranks} ranks are faster by"], rows)


if __name__ == "__main__":
    main()
