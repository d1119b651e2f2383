"""Forward and backward of N IMPALA networks (64x64 images), in TFLOP/s of useful work.

python benchmarks/impala.py [--particles 64] [--batch 256] [--precision bf16] [--device cuda]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from timing import machine, medians, print_table


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


class Impala(nn.Module):
    def __init__(self, channels: tuple[int, ...] = (16, 32, 32), actions: int = 15) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        before = 3
        for count in channels:
            blocks += [nn.Conv2d(before, count, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            blocks += [Residual(count), Residual(count)]
            before = count
        self.body = nn.Sequential(*blocks)
        self.dense = nn.Linear(before * 8 * 8, 256)
        self.head = nn.Linear(256, actions)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.dense(F.relu(self.body(x)).flatten(1))))


def flops_per_image() -> int:
    """Multiplications and additions of one forward pass, counted layer by layer."""
    total = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(layer, (nn.Conv2d, nn.Linear))
        places = output.shape[-1] * output.shape[-2] if isinstance(layer, nn.Conv2d) else 1
        total += 2 * layer.weight.numel() * places

    network = Impala()
    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    network(torch.zeros(1, 3, 64, 64))
    return total


def ensemble_pass(n: int, x: Tensor, precision: str, fast: bool) -> Callable[[], object]:
    particles = ol.Ensemble(Impala, n, precision=precision, fast=fast).to(x.device)
    y = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    loss = ol.per_particle(F.cross_entropy)

    def step() -> None:
        particles.zero_grad(set_to_none=True)
        loss(particles(x), y).sum().backward()

    return step if x.device.type == "cpu" else _graph(step)


def loop_pass(n: int, x: Tensor, precision: str) -> Callable[[], object]:
    networks = [Impala().to(x.device, memory_format=torch.channels_last) for _ in range(n)]
    y = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    images = x.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        for network in networks:
            network.zero_grad(set_to_none=True)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bf16"):
                outputs = network(images)
            F.cross_entropy(outputs.float(), y).backward()

    return step


def _graph(step: Callable[[], object]) -> Callable[[], object]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    # the graph reads the step's tensors: they must live as long as it does
    return lambda: (graph.replay(), step)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--particles", type=int, default=64)
    arguments.add_argument("--batch", type=int, default=256)
    arguments.add_argument("--precision", default="bf16")
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--rounds", type=int, default=10)
    options = arguments.parse_args()
    device = torch.device(options.device)
    n, batch = options.particles, options.batch
    x = torch.randn(batch, 3, 64, 64, device=device)
    work = 3 * n * batch * flops_per_image()  # the backward pass is two forward passes' worth
    ways = {
        "orderless": ensemble_pass(n, x, options.precision, fast=True),
        "torch.vmap": ensemble_pass(n, x, options.precision, fast=False),
        "Python loop": loop_pass(n, x, options.precision),
    }
    times = medians(ways, device, options.rounds, warmup=2)
    print(f"IMPALA 64x64, N={n}, batch {batch}, {options.precision}, ", end="")
    print(f"forward + backward; {machine(device)}\n")
    rows = [
        [name, f"{ms:.2f}", f"{work / ms / 1e9:.1f}", f"{ms / times['orderless']:.2f}x"]
        for name, ms in times.items()
    ]
    print_table(["way", "ms", "TFLOP/s", "orderless is faster by"], rows)


if __name__ == "__main__":
    main()
