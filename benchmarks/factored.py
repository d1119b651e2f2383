"""Gradients in factors against stored gradients, by the number of rows in a layer's input.

    python benchmarks/factored.py [--particles 50] [--rounds 5]

One step of the weighted filter with plain SGD in three ways: as the library chooses layer by layer,
with factors wherever they are correct, and with every gradient stored. The last column is the time
of the library's choice over that of the faster of the two; it should not exceed 1.2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from orderless.ensemble import linear
from timing import machine, medians, print_table

LIMITS = {
    "chosen": (linear.FEW_ROWS, linear.DENSE_PASSES),
    "factored": (float("inf"), 0.0),
    "dense": (0, float("-inf")),
}
MANY = 1024


@contextmanager
def limits(few_rows: float, dense_passes: float) -> Iterator[None]:
    before = linear.FEW_ROWS, linear.DENSE_PASSES
    linear.FEW_ROWS, linear.DENSE_PASSES = few_rows, dense_passes
    try:
        yield
    finally:
        linear.FEW_ROWS, linear.DENSE_PASSES = before


def mlp() -> nn.Module:
    hidden = [nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(100, 2))


class Encoder(nn.Module):
    """One transformer layer of width 64 over 32 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


def step(
    make: Callable[[], nn.Module], n: int, x: Tensor, y: Tensor, way: str
) -> Callable[[], object]:
    particles = ol.Ensemble(make, n, device=x.device)
    pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=1e-4))
    loss = ol.per_particle(F.cross_entropy)
    fast = pf.compile(lambda x, y: loss(particles(x), y))

    def run() -> None:
        with limits(*LIMITS[way]):
            fast(x, y)

    return run


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--particles", type=int, default=50)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = arguments.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    cases: list[tuple[str, Callable[[], nn.Module], int, tuple[int, ...]]] = [
        ("MLP 784-100-100-2", mlp, options.particles, (rows, 784))
        for rows in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
    ]
    cases += [
        ("encoder 64", Encoder, max(1, options.particles // 8), (rows // 32, 32, 64))
        for rows in (32, 128, 512, 2048, 8192)
    ]
    table, worst = [], 0.0
    for name, make, n, shape in cases:
        x = torch.randn(shape, device=device)
        y = torch.randint(2, shape[:1], device=device)
        rows = x[..., 0].numel()
        ways = {way: step(make, n, x, y, way) for way in LIMITS}
        if rows > MANY:  # quadratic in the rows, many times slower: not measured
            del ways["factored"]
        times = medians(ways, device, options.rounds, warmup=2)
        ratio = times["chosen"] / min(times[way] for way in ways if way != "chosen")
        worst = max(worst, ratio)
        row = [f"{times[way]:.2f}" if way in times else "" for way in LIMITS]
        table.append([name, str(n), str(rows), *row, f"{ratio:.2f}"])
        print(f"{name}, {rows} rows: {ratio:.2f}", flush=True)
    print(f"\nmilliseconds per step; {machine(device)}\n")
    print_table(["network", "N", "rows", *LIMITS, "chosen / cheaper"], table)
    print(f"\nworst: {worst:.2f}")


if __name__ == "__main__":
    main()
