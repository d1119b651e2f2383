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
from orderless_lab.rl import Impala
from timing import machine, medians, print_table


def network() -> nn.Module:
    """Logits only: the 256 weights of the value head do not affect the figures."""
    return Impala(value=False)


def flops_per_image() -> int:
    """Multiplications and additions of one forward pass, counted layer by layer."""
    total = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(layer, (nn.Conv2d, nn.Linear))
        places = output.shape[-1] * output.shape[-2] if isinstance(layer, nn.Conv2d) else 1
        total += 2 * layer.weight.numel() * places

    one = network()
    for layer in one.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    one(torch.zeros(1, 3, 64, 64))
    return total


def ensemble_pass(n: int, x: Tensor, precision: str) -> Callable[[], object]:
    particles = ol.Ensemble(network, n, precision=precision).to(x.device)
    y = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    loss = ol.per_particle(F.cross_entropy)

    def step() -> None:
        particles.zero_grad(set_to_none=True)
        loss(particles(x), y).sum().backward()

    return step if x.device.type == "cpu" else _graph(step)


def vmap_pass(n: int, x: Tensor, precision: str) -> Callable[[], object]:
    networks = [network().to(x.device) for _ in range(n)]
    parameters, _ = torch.func.stack_module_state(networks)
    y = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)

    def loss(own: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(networks[0], own, (x,)).float(), y)

    gradients = torch.vmap(torch.func.grad(loss))

    def step() -> None:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bf16"):
            gradients(parameters)

    return step if x.device.type == "cpu" else _graph(step)


def loop_pass(n: int, x: Tensor, precision: str) -> Callable[[], object]:
    networks = [network().to(x.device, memory_format=torch.channels_last) for _ in range(n)]
    y = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    images = x.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        for each in networks:
            each.zero_grad(set_to_none=True)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bf16"):
                outputs = each(images)
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
    # the graph reads the tensors of the step, so they must not be freed before it
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
    work = 3 * n * batch * flops_per_image()  # the backward pass costs two forward passes
    ways = {
        "orderless": ensemble_pass(n, x, options.precision),
        "torch.vmap": vmap_pass(n, x, options.precision),
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
