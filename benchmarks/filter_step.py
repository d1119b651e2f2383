"""One step of the weighted particle filter, against other ways to compute it.

    python benchmarks/filter_step.py [--hidden 100] [--batch 8] [--particles 100] [--device cpu]

Every way does the same work: losses and gradients of N networks, an SGD step, the losses again, and
new weights. Prints milliseconds per step and the speed-up of the library.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from timing import machine, medians, print_table


def make_network(hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 2),
    )


def library(hidden: int, n: int, x: Tensor, y: Tensor, precision: str) -> Callable[[], object]:
    options: Any = {"precision": precision, "device": x.device}
    particles = ol.Ensemble(lambda: make_network(hidden), n, **options)
    optimizer = torch.optim.SGD(particles.parameters(), lr=1e-4)
    loss = ol.per_particle(F.cross_entropy)
    step = ol.WeightedParticleFilter(particles, optimizer).compile(
        lambda x, y: loss(particles(x), y)
    )
    return lambda: step(x, y)


def python_loop(hidden: int, n: int, x: Tensor, y: Tensor) -> Callable[[], object]:
    networks = [make_network(hidden).to(x.device) for _ in range(n)]
    optimizers = [torch.optim.SGD(network.parameters(), lr=1e-4) for network in networks]
    log_weights = torch.zeros(n, dtype=torch.float64, device=x.device)

    def step() -> None:
        for i, (network, optimizer) in enumerate(zip(networks, optimizers, strict=True)):
            optimizer.zero_grad()
            before = F.cross_entropy(network(x), y)
            before.backward()
            optimizer.step()
            with torch.no_grad():
                log_weights[i] -= (before + F.cross_entropy(network(x), y)) / 2

    return step


def plain_vmap(hidden: int, n: int, x: Tensor, y: Tensor) -> Callable[[], object]:
    networks = [make_network(hidden).to(x.device) for _ in range(n)]
    stacked, _ = torch.func.stack_module_state(networks)
    parameters = {name: p.detach() for name, p in stacked.items()}
    log_weights = torch.zeros(n, dtype=torch.float64, device=x.device)
    template = networks[0]

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(template, parameters, (x,)), y)

    gradients = torch.vmap(torch.func.grad_and_value(loss))

    @torch.no_grad()
    def step() -> None:
        grads, before = gradients(parameters)
        for name, parameter in parameters.items():
            parameter.add_(grads[name], alpha=-1e-4)
        log_weights.sub_((before + torch.vmap(loss)(parameters)) / 2)

    return step


def jax_vmap(hidden: int, n: int, x: Tensor, y: Tensor) -> Callable[[], object] | None:
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return None
    target = jax.devices("gpu" if x.device.type == "cuda" else "cpu")[0]
    networks = [make_network(hidden) for _ in range(n)]
    names = [name for name, _ in networks[0].named_parameters()]
    stacks = [
        torch.stack([dict(net.named_parameters())[name].detach() for net in networks])
        for name in names
    ]
    parameters = [jax.device_put(stack.numpy(), target) for stack in stacks]
    inputs, labels = (jax.device_put(t.cpu().numpy(), target) for t in (x, y))

    def loss(parameters):  # type: ignore[no-untyped-def]
        hidden_values = inputs
        for layer in range(3):
            weight, bias = parameters[2 * layer], parameters[2 * layer + 1]
            hidden_values = hidden_values @ weight.T + bias
            hidden_values = jax.nn.relu(hidden_values) if layer < 2 else hidden_values
        log_p = jax.nn.log_softmax(hidden_values)
        return -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], axis=1))

    def update(parameters, log_weights):  # type: ignore[no-untyped-def]
        before, grads = jax.vmap(jax.value_and_grad(loss))(parameters)
        parameters = [p - 1e-4 * g for p, g in zip(parameters, grads, strict=True)]
        return parameters, log_weights - (before + jax.vmap(loss)(parameters)) / 2

    compiled = jax.jit(update, donate_argnums=(0, 1))
    state = [parameters, jax.device_put(jnp.zeros(n), target)]

    def step() -> None:
        state[:] = compiled(*state)
        jax.block_until_ready(state)

    return step


def peak_memory(step: Callable[[], object], parameter_bytes: int) -> str:
    """Peak memory of one step, parameters included, in units of the parameters."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    return f"{(extra + parameter_bytes) / parameter_bytes:.2f}x parameters"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--hidden", type=int, default=100)
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--particles", type=int, default=100)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--precision", default="float32")
    arguments.add_argument("--rounds", type=int, default=30)
    options = arguments.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    x = torch.randn(options.batch, 784, device=device)
    y = torch.randint(2, (options.batch,), device=device)
    size = options.hidden, options.particles, x, y

    ours = library(*size, options.precision)
    ways = {"orderless": ours, "torch.vmap": plain_vmap(*size), "Python loop": python_loop(*size)}
    jax_step = jax_vmap(*size)
    if jax_step is not None:
        ways["JAX jit(vmap)"] = jax_step
    times = medians(ways, device, options.rounds)
    print(f"MLP 784-{options.hidden}-{options.hidden}-2, N={options.particles}, ", end="")
    print(f"batch {options.batch}, {options.precision}; {machine(device)}\n")
    rows = [[k, f"{v:.3f}", f"{v / times['orderless']:.2f}x"] for k, v in times.items()]
    print_table(["way", "ms per step", "orderless is faster by"], rows)
    if device.type == "cuda":
        weights = sum(p.numel() for p in make_network(options.hidden).parameters())
        eager = ol.Ensemble(lambda: make_network(options.hidden), options.particles).to(device)
        pf = ol.WeightedParticleFilter(eager, torch.optim.SGD(eager.parameters(), lr=1e-4))
        loss = ol.per_particle(F.cross_entropy)
        peak = peak_memory(lambda: pf.step(lambda: loss(eager(x), y)), 4 * weights * eager.n)
        print(f"\npeak memory of an eager SGD step: {peak}")


if __name__ == "__main__":
    main()
