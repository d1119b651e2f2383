"""Tiles of the convolutions' kernel: how fast each is in every layer of N IMPALA networks.

    python benchmarks/tiles.py [--particles 8] [--batch 2048] [--workers 16] [--out tiles.json]

Every launch of `gather` (particles/kernels/grouped.py) in a weighted step of PPO, in bf16: all
layers but the first, forward twice and by their inputs once, each with what it fuses. The best tile
of a pair (channels in, channels out) is the one with the least time over all its launches; the
table of them, at the end, is what TILES holds. The filters' gradients are timed beside it, by
Triton at several tiles and by cuDNN with the biases' sum.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderless.particles.kernels import grouped
from orderless.particles.kernels.grouped import Geometry, Tile
from timing import machine, medians, print_table

TODAY = Tile()
CANDIDATES = [
    TODAY,
    Tile(stages=1),
    Tile(stages=2),
    Tile(together=True),
    *(Tile((1, 2), rows, inner, 64, 4, stages, together)
      for rows, inner, stages, together in ((128, 32, 3, False), (128, 64, 3, False),
                                            (128, 32, 1, False), (128, 64, 3, True))),
    *(Tile((2, 2), rows, inner, 128, warps, stages, together)
      for rows, inner, warps, stages, together in (
          (64, 32, 4, 3, False), (64, 64, 4, 3, False), (64, 64, 4, 3, True),
          (64, 64, 4, 2, False), (128, 32, 4, 3, False), (128, 64, 8, 3, False),
          (128, 64, 8, 3, True), (64, 32, 4, 1, False), (64, 32, 4, 1, True))),
    Tile((2, 4), 64, 32, 256, 4, 3),
    Tile((2, 4), 64, 64, 256, 8, 3, True),
]  # fmt: skip
FILTERS = [
    {"ROWS": rows, "num_warps": warps, "num_stages": stages}
    for rows, warps, stages in ((64, 4, 3), (32, 4, 3), (128, 4, 3), (64, 8, 3), (128, 8, 2))
]


@dataclass(frozen=True)
class Launch:
    """One kind of launch, and how many a step has."""

    inputs: int
    outputs: int
    side: int
    backward: bool
    fuses: tuple[str, ...]
    count: int

    @property
    def name(self) -> str:
        way = "by inputs" if self.backward else "forward"
        return f"{self.inputs} to {self.outputs}, {self.side}x{self.side}, {way}"


def launches() -> list[Launch]:
    """Of channels (16, 32, 32): a convolution, and two residual blocks on half the side."""
    found = []
    for inputs, outputs, side in ((16, 16, 64), (16, 32, 32), (32, 32, 16)):
        if side < 64:  # the first layer has a kernel of its own
            found.append(Launch(inputs, outputs, side, False, (), 2))
            found.append(Launch(outputs, inputs, side, True, (), 1))
        for backward, first, second in ((False, "relu", "added"), (True, "signs", "signs added")):
            for fuses in (first, second):
                block = outputs, outputs, side // 2, backward
                found.append(Launch(*block, tuple(fuses.split()), 2 if backward else 4))
    return found


def images(n: int, batch: int, channels: int, side: int, device: str) -> Tensor:
    x = torch.randn(batch, n * channels, side, side, device=device, dtype=torch.bfloat16)
    return x.contiguous(memory_format=torch.channels_last)


def call(launch: Launch, n: int, batch: int, device: str) -> Callable[[Tile], Tensor]:
    """A function of a tile that launches the kernel with it."""
    ends = launch.inputs, launch.outputs
    g = Geometry(n, *(ends[::-1] if launch.backward else ends), (3, 3), (1, 1), (1, 1))
    torch.manual_seed(0)
    source = images(n, batch, launch.inputs, launch.side, device)
    like = images(n, batch, launch.outputs, launch.side, device)
    weight = torch.randn(n, 9, *ends, device=device).to(torch.bfloat16) / 12
    bias = None if launch.backward else torch.randn(n, launch.outputs, device=device)
    fused: dict[str, Any] = {name: True if name == "relu" else like for name in launch.fuses}

    def run(tile: Tile) -> Tensor:
        grouped.TILES[ends] = tile
        size = launch.side, launch.side
        return grouped.gather(source, weight, bias, size, g, launch.backward, **fused)

    return run


def compiles(work: tuple[Launch, Tile, int]) -> bool:
    """In another process: the compiled kernel comes to rest in Triton's cache on the disk."""
    launch, tile, n = work
    try:
        call(launch, n, 2, "cuda")(tile)
        torch.cuda.synchronize()
    except Exception as error:  # too many registers, too much shared memory
        print(f"{launch.name}, {text(tile)}: {str(error)[:100]}", flush=True)
        return False
    return True


def times(launch: Launch, tiles: list[Tile], n: int, batch: int, device: str) -> dict[Tile, float]:
    """Milliseconds of each tile whose result is that of today's."""
    run = call(launch, n, batch, device)
    wanted, ways = run(TODAY).float(), {}
    for tile in tiles:
        error = float((run(tile).float() - wanted).norm() / wanted.norm())
        if error > 1e-2:  # bf16, summed in another order
            raise ArithmeticError(f"{launch.name}, {tile}: differs by {error:.2e}")
        ways[text(tile)] = partial(run, tile)
    found = medians(ways, torch.device(device), rounds=3, warmup=1)
    return {tile: found[text(tile)] for tile in tiles}


def filter_times(n: int, batch: int, device: str) -> Iterator[list[str]]:
    """The filters' and biases' gradients, by Triton and by cuDNN."""
    for inputs, outputs, side in ((16, 16, 32), (16, 32, 32), (32, 32, 16), (32, 32, 8)):
        g = Geometry(n, inputs, outputs, (3, 3), (1, 1), (1, 1))
        x, slope = (images(n, batch, channels, side, device) for channels in (inputs, outputs))
        weight = torch.randn(n, outputs, inputs, 3, 3, device=device)

        def by_triton(tile: dict[str, int], x: Tensor, slope: Tensor, g: Geometry) -> None:
            grouped.FILTERS = tile
            grouped.filter_gradient(x, slope, g)

        def by_cudnn(x: Tensor, slope: Tensor, weight: Tensor, g: Geometry) -> None:
            grouped.by_cudnn(slope, x, weight, g, (False, True))
            grouped._bias_gradient(slope, g, weight.dtype)

        ways = {str(tile): partial(by_triton, tile, x, slope, g) for tile in FILTERS}
        ways["cuDNN"] = partial(by_cudnn, x, slope, weight, g)
        found = medians(ways, torch.device(device), rounds=3, warmup=1)
        for way, ms in found.items():
            yield [f"{inputs} to {outputs}, {side}x{side}", way, f"{ms:.3f}"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--particles", type=int, default=8)
    arguments.add_argument("--batch", type=int, default=2048)
    arguments.add_argument("--workers", type=int, default=16)
    arguments.add_argument("--out", type=Path, default=Path("tiles.json"))
    options = arguments.parse_args()
    kinds, n = launches(), options.particles
    with ProcessPoolExecutor(options.workers, get_context("fork")) as pool:
        work = [(launch, tile, n) for tile, launch in product(CANDIDATES, kinds)]
        works = dict(zip(work, pool.map(compiles, work), strict=True))
    print(f"N={n}, batch {options.batch}, bf16; {machine(torch.device('cuda'))}\n")
    measured = {
        launch: times(
            launch, [t for t in CANDIDATES if works[launch, t, n]], n, options.batch, "cuda"
        )
        for launch in kinds
    }
    print_table(
        ["launch", "fuses", "launches", "tile", "ms each"],
        ([launch.name, " ".join(launch.fuses), str(launch.count), text(tile), f"{ms:.3f}"]
         for launch, found in measured.items()
         for tile, ms in sorted(found.items(), key=lambda item: item[1])),
    )  # fmt: skip
    best = {}
    print()
    for ends in dict.fromkeys((launch.inputs, launch.outputs) for launch in kinds):
        own = [launch for launch in kinds if (launch.inputs, launch.outputs) == ends]
        totals = {
            tile: sum(launch.count * measured[launch][tile] for launch in own)
            for tile in CANDIDATES
            if all(tile in measured[launch] for launch in own)
        }
        best[ends] = min(totals, key=totals.__getitem__)
        least = f"{totals[TODAY]:.2f} to {totals[best[ends]]:.2f} ms a step"
        print(f"{ends}: {best[ends]},  # {least}", flush=True)
    print()
    print_table(["filters' gradient", "way", "ms"], filter_times(n, options.batch, "cuda"))
    document = {
        "machine": machine(torch.device("cuda")),
        "best": [[*ends, asdict(tile)] for ends, tile in best.items()],
        "times": [
            [asdict(launch), asdict(tile), ms]
            for launch, found in measured.items()
            for tile, ms in found.items()
        ],
    }
    options.out.write_text(json.dumps(document) + "\n")


def text(tile: Tile) -> str:
    return " ".join(f"{name}={value}" for name, value in asdict(tile).items())


if __name__ == "__main__":
    main()
