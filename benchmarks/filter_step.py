"""One step of the weighted particle filter with plain SGD, against other ways to compute it.

    python benchmarks/filter_step.py [--old FOLDER] [--device cpu] [--precision float32]
    python benchmarks/filter_step.py --hidden 400 --batch 8 --particles 100

Every way does the same work: losses and gradients of N networks, an SGD step, the losses again, and
new weights. Prints milliseconds per step and how much faster the library is; ways alternate in one
process. On a CPU the times are those of one core (`time.process_time`), so that a busy machine does
not count. Without sizes these cases run:

    4 and 100 networks 20-32-2 at batch 32, where the cost of calls decides;
    MLPs 784-h-h-2, (N, h, B) = (100, 100, 8), (100, 100, 64), (20, 400, 8), (10, 400, 128).

`--old FOLDER` also times another version of the library, e.g. the folder `src` of a checkout.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from timing import machine, medians, print_table


class Case(NamedTuple):
    particles: int
    widths: tuple[int, ...]
    batch: int

    def __str__(self) -> str:
        shape = "-".join(map(str, self.widths))
        return f"N={self.particles}, {shape}, batch {self.batch}"


def mlp_case(particles: int, hidden: int, batch: int) -> Case:
    return Case(particles, (784, hidden, hidden, 2), batch)


TINY = [Case(4, (20, 32, 2), 32), Case(100, (20, 32, 2), 32)]
MLPS = [mlp_case(100, 100, 8), mlp_case(100, 100, 64), mlp_case(20, 400, 8), mlp_case(10, 400, 128)]


def make_network(widths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def another_version(folder: str) -> Any:
    """The library in `folder`, imported beside this one."""
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if _of_library(name)}
    sys.path.insert(0, folder)
    other = importlib.import_module("orderless")
    sample = Case(2, (3, 4, 2), 5)
    batch = torch.zeros(5, 3), torch.zeros(5, dtype=torch.long)
    library(other, sample, *batch, "float32")()  # imports what it needs
    sys.path.remove(folder)
    for name in [name for name in sys.modules if _of_library(name)]:
        del sys.modules[name]
    sys.modules.update(ours)
    return other


def _of_library(name: str) -> bool:
    return name.split(".")[0] == "orderless"


def library(version: Any, case: Case, x: Tensor, y: Tensor, precision: str) -> Callable[[], object]:
    particles = version.Ensemble(
        lambda: make_network(case.widths), case.particles, precision=precision, device=x.device
    )
    optimizer = torch.optim.SGD(particles.parameters(), lr=1e-4)
    loss = version.per_particle(F.cross_entropy)
    step = version.WeightedParticleFilter(particles, optimizer).compile(
        lambda x, y: loss(particles(x), y)
    )
    return lambda: step(x, y)


def python_loop(case: Case, x: Tensor, y: Tensor) -> Callable[[], object]:
    n = case.particles
    networks = [make_network(case.widths).to(x.device) for _ in range(n)]
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


def plain_vmap(case: Case, x: Tensor, y: Tensor) -> Callable[[], object]:
    networks = [make_network(case.widths).to(x.device) for _ in range(case.particles)]
    stacked, _ = torch.func.stack_module_state(networks)
    parameters = {name: p.detach() for name, p in stacked.items()}
    log_weights = torch.zeros(case.particles, dtype=torch.float64, device=x.device)
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


def jax_vmap(case: Case, x: Tensor, y: Tensor) -> Callable[[], object] | None:
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return None
    target = jax.devices("gpu" if x.device.type == "cuda" else "cpu")[0]
    n = case.particles
    networks = [make_network(case.widths) for _ in range(n)]
    names = [name for name, _ in networks[0].named_parameters()]
    stacks = [
        torch.stack([dict(net.named_parameters())[name].detach() for net in networks])
        for name in names
    ]
    parameters = [jax.device_put(stack.numpy(), target) for stack in stacks]
    inputs, labels = (jax.device_put(t.cpu().numpy(), target) for t in (x, y))

    def loss(parameters):  # type: ignore[no-untyped-def]
        hidden_values = inputs
        for layer in range(len(case.widths) - 1):
            weight, bias = parameters[2 * layer], parameters[2 * layer + 1]
            hidden_values = hidden_values @ weight.T + bias
            hidden_values = (
                jax.nn.relu(hidden_values) if layer < len(case.widths) - 2 else hidden_values
            )
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


def core_times(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Lower quartiles of milliseconds of processor time: other processes only ever add to it."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            way()  # after another way, caches hold other things
            begun = time.process_time()
            way()
            times[name].append(1e3 * (time.process_time() - begun))
    return {name: sorted(values)[len(values) // 4] for name, values in times.items()}


def measure(case: Case, options: argparse.Namespace, old: Any) -> dict[str, float]:
    device = torch.device(options.device)
    torch.manual_seed(0)
    x = torch.randn(case.batch, case.widths[0], device=device)
    y = torch.randint(2, (case.batch,), device=device)
    ways = {"orderless": library(ol, case, x, y, options.precision)}
    if old is not None:
        ways["other version"] = library(old, case, x, y, options.precision)
    ways["torch.vmap"] = plain_vmap(case, x, y)
    ways["Python loop"] = python_loop(case, x, y)
    jax_step = jax_vmap(case, x, y)
    if jax_step is not None:
        ways["JAX jit(vmap)"] = jax_step
    if device.type == "cuda":
        return medians(ways, device, options.rounds)
    rounds = 20 * options.rounds if case.widths[0] == 20 and case.particles < 10 else options.rounds
    return core_times(ways, rounds)


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--hidden", type=int)
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--particles", type=int, default=100)
    arguments.add_argument("--old", help="folder with another version of the library")
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--precision", default="float32")
    arguments.add_argument("--rounds", type=int, default=30)
    options = arguments.parse_args()
    device = torch.device(options.device)
    cases = [*TINY, *MLPS]
    if options.hidden is not None:
        cases = [mlp_case(options.particles, options.hidden, options.batch)]
    if device.type == "cpu":
        torch.set_num_threads(1)
    old = None if options.old is None else another_version(options.old)
    print(f"{options.precision}; {machine(device)}\n")
    rows = []
    against_vmap = []
    for case in cases:
        times = measure(case, options, old)
        ours = times["orderless"]
        rows += [[str(case), way, f"{ms:.3f}", f"{ms / ours:.2f}x"] for way, ms in times.items()]
        if case not in TINY:
            against_vmap.append(times["torch.vmap"] / ours)
    print_table(["case", "way", "ms per step", "orderless is faster by"], rows)
    mean = sum(against_vmap) / len(against_vmap)
    print(f"\nfaster than torch.vmap on MLPs by {mean:.2f}x on average")
    if device.type == "cuda":
        for case in cases:
            print(f"{case}: peak memory of an eager SGD step: {eager_peak(case, device)}")


def eager_peak(case: Case, device: torch.device) -> str:
    particles = ol.Ensemble(lambda: make_network(case.widths), case.particles).to(device)
    pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=1e-4))
    loss = ol.per_particle(F.cross_entropy)
    x = torch.randn(case.batch, case.widths[0], device=device)
    y = torch.randint(2, (case.batch,), device=device)
    weights = sum(p.numel() for p in particles.parameters())
    return peak_memory(lambda: pf.step(lambda: loss(particles(x), y)), 4 * weights)


if __name__ == "__main__":
    main()
