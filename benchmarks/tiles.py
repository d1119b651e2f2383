"""Tiles of the convolution kernels: the time of each in every layer of N IMPALA networks.

    python benchmarks/tiles.py [--particles 8] [--batch 2048] [--workers 16] [--out tiles.json]

Measures every launch in a weighted step of PPO in bf16: all layers except the first, forward twice,
and once each for the gradients of inputs and filters, with the operations fused into them. The best
tile of a pair (channels in, channels out) has the least time over all its launches. At the end it
prints TILES and FILTER_TILES of orderless_lab/rl/kernels/grouped.py. *Usual* is the tile of
all other layers.
"""

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderless_lab.rl.kernels import grouped
from orderless_lab.rl.kernels.grouped import Geometry, Tile
from timing import machine, medians, print_table

USUAL = None
# patch, rows, inner, columns, warps, stages, together, span
CANDIDATES: dict[str, list[Tile | None]] = {
    "TILES": [
        USUAL,
        Tile((1, 1), 128, 32, 64, 4, 3, True),
        Tile((1, 1), 128, 64, 64, 4, 3, True),
        Tile((1, 1), 256, 32, 64, 8, 3, True),
        Tile((1, 1), 64, 512, 64, 8, 2, True, 16),
        Tile((1, 2), 128, 64, 64, 4, 3, True),
        Tile((1, 2), 128, 64, 64, 8, 3, True),
        Tile((1, 2), 256, 64, 64, 8, 2, True),
        Tile((1, 2), 64, 512, 64, 8, 2, True, 16),
        Tile((2, 2), 128, 64, 128, 8, 3, True),
        Tile((2, 2), 128, 64, 128, 8, 2, True),
        Tile((2, 2), 128, 32, 128, 8, 3, True),
        Tile((2, 2), 256, 32, 128, 8, 3, True),
        Tile((2, 2), 256, 64, 128, 8, 2, True),
        Tile((2, 2), 64, 512, 128, 4, 2, True, 16),
        Tile((2, 2), 64, 512, 128, 4, 3, True, 16),
        Tile((2, 2), 64, 512, 128, 8, 2, True, 16),
        Tile((2, 2), 128, 512, 128, 8, 2, True, 16),
        Tile((2, 2), 64, 512, 128, 4, 2, True, 4),
    ],
    "FILTER_TILES": [
        USUAL,
        Tile((1, 1), 64, 256, 64, 4, 3, True),
        Tile((1, 1), 32, 256, 64, 4, 3, True),
        Tile((1, 2), 64, 256, 128, 8, 3, True),
        Tile((2, 2), 64, 256, 128, 8, 3, True),
        Tile((2, 2), 64, 256, 128, 8, 2, True),
        Tile((2, 2), 32, 256, 128, 8, 3, True),
        Tile((2, 2), 32, 256, 128, 8, 4, True),
        Tile((2, 2), 64, 128, 128, 4, 3, True),
        Tile((2, 2), 64, 256, 128, 8, 3),
    ],
}


@dataclass(frozen=True)
class Launch:
    """One kind of launch, and its number in a step."""

    table: str
    inputs: int
    outputs: int
    side: int
    way: str
    count: int
    fuses: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        what = " ".join([self.way, *self.fuses])
        return f"{self.inputs} to {self.outputs}, {self.side}x{self.side}, {what}"


def launches() -> list[Launch]:
    """Convolutions of 16, 32 and 32 channels, each followed by two residual blocks at half size."""
    gather, filters = CANDIDATES
    found = []
    for inputs, outputs, side in ((16, 32, 32), (32, 32, 16)):
        found.append(Launch(gather, inputs, outputs, side, "forward", 2))
        found.append(Launch(gather, outputs, inputs, side, "by inputs", 1))
        found.append(Launch(filters, inputs, outputs, side, "by filters", 1))
    for channels, side in ((16, 32), (32, 16), (32, 8)):
        block = channels, channels, side
        for fuses in (("relu",), ("added",)):
            found.append(Launch(gather, *block, "forward", 4, fuses))
        for fuses in (("signs",), ("signs", "added")):
            found.append(Launch(gather, *block, "by inputs", 2, fuses))
        found.append(Launch(filters, *block, "by filters", 4))
    return found


def call(launch: Launch, n: int, batch: int, device: str) -> Callable[[Tile | None], Tensor]:
    """A function that launches the kernel with a given tile."""
    ends, size = (launch.inputs, launch.outputs), (launch.side, launch.side)
    backward = launch.way == "by inputs"
    g = Geometry(n, *(ends[::-1] if backward else ends), (3, 3), (1, 1), (1, 1))
    torch.manual_seed(0)
    source, like = (
        torch.randn(batch, n * channels, *size, device=device, dtype=torch.bfloat16).contiguous(
            memory_format=torch.channels_last
        )
        for channels in ends
    )
    weight = torch.randn(n, 9, *ends, device=device).to(torch.bfloat16) / 12
    bias = None if backward else torch.randn(n, launch.outputs, device=device)
    fused: dict[str, Any] = {name: True if name == "relu" else like for name in launch.fuses}

    def gather() -> Tensor:
        return grouped.gather(source, weight, bias, size, g, backward, **fused)

    def filters() -> Tensor:
        parameter = torch.empty(n, *ends[::-1], 3, 3, device=device)
        slopes = grouped.filter_gradients(source, like, parameter, g)
        return torch.cat([slope.flatten(1) for slope in slopes], 1)

    def run(tile: Tile | None) -> Tensor:
        table = getattr(grouped, launch.table)
        table.pop(ends, None)
        if tile is not None:
            table[ends] = tile
        return filters() if launch.way == "by filters" else gather()

    return run


def compiles(launch: Launch, n: int, batch: int, tile: Tile | None) -> bool:
    """Compile in another process; the kernel is then in Triton's cache on the disk."""
    try:
        call(launch, n, batch, "cuda")(tile)
        torch.cuda.synchronize()
    except Exception as error:  # too many registers, too much shared memory
        print(f"{launch.name}, {tile}: {str(error)[:100]}", flush=True)
        return False
    return True


def times(
    launch: Launch, tiles: list[Tile | None], n: int, batch: int, device: str
) -> dict[Tile | None, float]:
    """Milliseconds of each tile whose result equals that of the usual tile."""
    run = call(launch, n, batch, device)
    wanted, right = run(USUAL).float(), {}
    for tile in tiles:
        error = float((run(tile).float() - wanted).norm() / wanted.norm())
        if error < 1e-2:  # bf16, summed in another order
            right[str(tile)] = tile
        else:
            print(f"{launch.name}, {tile}: differs by {error:.2e}", flush=True)
    ways = {name: partial(run, tile) for name, tile in right.items()}
    found = medians(ways, torch.device(device), rounds=3, warmup=1)
    return {tile: found[name] for name, tile in right.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--particles", type=int, default=8)
    arguments.add_argument("--batch", type=int, default=2048)
    arguments.add_argument("--workers", type=int, default=16)
    arguments.add_argument("--out", type=Path, default=Path("tiles.json"))
    options = arguments.parse_args()
    kinds, n = launches(), options.particles
    with ProcessPoolExecutor(options.workers, get_context("fork")) as pool:
        work = [(launch, tile) for launch in kinds for tile in CANDIDATES[launch.table]]
        futures = {key: pool.submit(compiles, key[0], n, options.batch, key[1]) for key in work}
        works = {key: future.result() for key, future in futures.items()}
    print(f"N={n}, batch {options.batch}, bf16; {machine(torch.device('cuda'))}\n", flush=True)
    measured = {}
    for launch in kinds:
        tiles = [tile for tile in CANDIDATES[launch.table] if works[launch, tile]]
        measured[launch] = times(launch, tiles, n, options.batch, "cuda")
    print_table(
        ["launch", "number", "tile", "ms each"],
        ([launch.name, str(launch.count), str(tile or "usual"), f"{ms:.3f}"]
         for launch, found in measured.items()
         for tile, ms in sorted(found.items(), key=lambda item: item[1])),
    )  # fmt: skip
    best: dict[str, list[list[Any]]] = {table: [] for table in CANDIDATES}
    for table, inputs, outputs in dict.fromkeys((k.table, k.inputs, k.outputs) for k in kinds):
        own = [k for k in kinds if (k.table, k.inputs, k.outputs) == (table, inputs, outputs)]
        totals = {
            tile: sum(launch.count * measured[launch][tile] for launch in own)
            for tile in CANDIDATES[table]
            if all(tile in measured[launch] for launch in own)
        }
        tile = min(totals, key=totals.__getitem__)
        gain = f"{totals[USUAL]:.2f} to {totals[tile]:.2f} ms a step"
        print(f"{table}: ({inputs}, {outputs}): {tile or 'usual'},  # {gain}", flush=True)
        if tile is not None:
            best[table].append([inputs, outputs, asdict(tile)])
    rows = [
        [launch.name, launch.count, str(tile or "usual"), ms]
        for launch, found in measured.items()
        for tile, ms in found.items()
    ]
    document = {"machine": machine(torch.device("cuda")), "best": best, "times": rows}
    options.out.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
