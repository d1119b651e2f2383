"""The cost of a million samples for the exact filter, by the number of features M.

    python benchmarks/scale.py [--device cuda] [--features 512 2048 10000] [--samples 65536]

`update`: features of 784 inputs and their sums. `merge`: adding the sums of two parts. `read`: from
the sums to a head with its evidence. `part`: bytes of one part's file, which one merge sends.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

import orderless as ol
from timing import machine, print_table

INPUTS, CLASSES = 784, 10


def seconds(way: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Median time of single calls; the first is not counted.

    On the CPU it is the processor time of all threads, on which other processes have little effect.
    """
    times, clock = [], time.perf_counter if device.type == "cuda" else time.process_time
    for _ in range(rounds + 1):
        begun = clock()
        way()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - begun)
    return sorted(times[1:])[rounds // 2]


def measure(width: int, samples: int, device: torch.device, rounds: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, INPUTS, generator=generator).to(device)
    y = (torch.arange(samples) % CLASSES).to(device)
    maps = ol.Ensemble(lambda: ol.features.RandomReLU(INPUTS, width), n=1, device=device)
    rb = ol.ExactHead(maps, classes=CLASSES)
    rb.update(x[:256], y[:256])
    part = rb.sums
    assert part is not None

    def read() -> None:
        rb.class_prior = None  # clears the cached heads
        rb.heads  # noqa: B018

    return {
        "features": width,
        "update_s_per_million": seconds(lambda: rb.update(x, y), device, rounds) * 1e6 / samples,
        "merge_ms": seconds(lambda: part.plus(part), device, rounds) * 1e3,
        "read_s": seconds(read, device, rounds),
        "part_mb": 8 * ((width + 1) ** 2 + CLASSES * (width + 1) + CLASSES) / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--features", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--samples", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    found = []
    for width in options.features:
        found.append(measure(width, options.samples, device, options.rounds))
        if options.out is not None:
            options.out.write_text(
                json.dumps({"machine": machine(device), "costs": found}, indent=1)
            )
    print(f"{machine(device)}, {options.samples} samples at a time")
    header = ["M", "s per million samples", "merge, ms", "read, s", "part, MB"]
    rows = [[f"{value:,.4g}" for value in cost.values()] for cost in found]
    print_table(header, rows)


if __name__ == "__main__":
    main()
