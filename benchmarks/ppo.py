"""PPO over particles on real ProcGen, end to end: environment steps per second.

    python benchmarks/ppo.py [--particles 1,8] [--envs 64,256] [--rounds 3] [--network impala]
                             [--rollout 256] [--unweighted] [--plain] [--profile]

A round is 16,384 steps in all environments together, or `--rollout` in each, and three epochs over
them; the first two, which record the graphs, are not counted.
Particles are weighted, which computes their losses twice per step, unless `--unweighted` is given.
`--plain` also measures one network in stock PyTorch (plain_ppo.py), and `--profile` prints the
kernels of one more round of each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import orderless as ol
from orderless_lab.rl import PPO
from orderless_lab.rl.networks import NETWORKS
from orderless_lab.rl.procgen import ProcgenLevels
from orderless_lab.rl.settings import rollouts_for
from plain_ppo import PlainPPO
from timing import machine, print_table


def measure(n: int, envs: int, options: argparse.Namespace) -> list[str]:
    """One row of the table: N particles, or plain PPO at N=1."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    particles = ol.Ensemble(
        NETWORKS[options.network], n, device=device, precision=options.precision
    )
    optimizer = torch.optim.Adam(particles.parameters(), lr=5e-4)
    several = ol.AveragingParticles if options.unweighted else ol.WeightedParticleFilter
    kind = ol.GradientDescent if n == 1 else several
    env = ProcgenLevels("starpilot", envs)
    settings = rollouts_for(envs, options.rollout)
    ppo = PPO(kind(particles, optimizer, max_grad_norm=0.5), env, settings)
    collected = [ppo.collect()]

    def collect() -> None:
        collected[0] = ppo.collect()

    row = timed(collect, lambda: ppo.update(collected[0]), envs * settings.steps, options)
    env.close()
    weighted = ", weighted" if kind is ol.WeightedParticleFilter else ""
    return [f"orderless, N={n}{weighted}", f"{envs} x {settings.steps}", *row]


def measure_plain(envs: int, options: argparse.Namespace) -> list[str]:
    """One row of the table: one network in stock PyTorch."""
    settings = rollouts_for(envs, options.rollout)
    env = ProcgenLevels("starpilot", envs)
    ppo = PlainPPO(NETWORKS[options.network](), env, settings)
    row = timed(ppo.collect, ppo.update, envs * settings.steps, options)
    env.close()
    return ["stock PyTorch, one network", f"{envs} x {settings.steps}", *row]


def timed(
    collect: Callable[[], object],
    update: Callable[[], object],
    steps: int,
    options: argparse.Namespace,
) -> list[str]:
    """Steps per second, and milliseconds of the two parts of a round of `steps`."""
    for _ in range(2):
        collect()
        update()
    parts = {"collecting": collect, "learning": update}
    seconds = dict.fromkeys(parts, 0.0)
    for _ in range(options.rounds):
        for name, part in parts.items():
            _wait()
            begun = time.perf_counter()
            part()
            _wait()
            seconds[name] += time.perf_counter() - begun
    if options.profile:
        for name, part in parts.items():
            _print_profile(name, part)
    rate = options.rounds * steps / sum(seconds.values())
    return [f"{rate:,.0f}", *(f"{1e3 * spent / options.rounds:.0f}" for spent in seconds.values())]


def _print_profile(name: str, part: Callable[[], object]) -> None:
    """Print the GPU's time by kernel, and the time in which it is idle."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        begun = time.perf_counter()
        part()
        _wait()
        wall = time.perf_counter() - begun
    kernels: dict[str, list[float]] = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e3)
    busy = sum(map(sum, kernels.values()))
    print(f"{name}: {1e3 * wall:.0f} ms, kernels {busy:.0f} ms")
    for kernel, times in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:12]:
        print(f"  {sum(times):7.1f} ms {len(times):6d} x {kernel[:90]}")


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--particles", default="1,8")
    arguments.add_argument("--envs", default="64,256")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--rollout", type=int)
    arguments.add_argument("--unweighted", action="store_true")
    arguments.add_argument("--plain", action="store_true")
    arguments.add_argument("--profile", action="store_true")
    arguments.add_argument("--network", default="impala", choices=sorted(NETWORKS))
    arguments.add_argument("--precision", default="bf16")
    options = arguments.parse_args()
    sizes = [int(text) for text in options.particles.split(",")]
    copies = [int(text) for text in options.envs.split(",")]
    place = machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    print(f"PPO, Starpilot level 0, {options.network}, {options.precision}; {place}\n")
    rows = [measure(n, envs, options) for n in sizes for envs in copies]
    if options.plain:
        rows += [measure_plain(envs, options) for envs in copies]
    each = ["collecting, ms a round", "learning, ms a round"]
    print_table(["way", "environments x steps", "steps per second", *each], rows)


if __name__ == "__main__":
    main()
