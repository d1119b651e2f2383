"""PPO over particles on real ProcGen, end to end: environment steps per second.

    python benchmarks/ppo.py [--particles 1,16] [--envs 64,256] [--rounds 5] [--network impala]
                             [--rollout 256] [--turns 2]

A round is 16,384 steps in all environments together, or `--rollout` in each, and three epochs over
them; the first two, which record the graphs, are not counted. The share of the time spent on
collecting is told, too. With `--turns 2` one half of the environments plays while the GPU decides
for the other.
"""

from __future__ import annotations

import argparse
import time

import torch

import orderless as ol
from orderless.rl import PPO
from orderless.rl.networks import NETWORKS
from orderless.rl.procgen import ProcgenLevels
from orderless.rl.settings import rollouts_for
from timing import machine, print_table


def measure(n: int, envs: int, options: argparse.Namespace) -> list[str]:
    """Steps per second of N weighted particles; of plain PPO at N=1."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    particles = ol.Ensemble(
        NETWORKS[options.network], n, device=device, precision=options.precision
    )
    optimizer = torch.optim.Adam(particles.parameters(), lr=5e-4)
    kind = ol.GradientDescent if n == 1 else ol.WeightedParticleFilter
    copies = [ProcgenLevels("starpilot", envs // options.turns) for _ in range(options.turns)]
    settings = rollouts_for(envs, options.rollout)
    ppo = PPO(kind(particles, optimizer, max_grad_norm=0.5), copies, settings)
    for _ in range(2):
        ppo.update(ppo.collect())
    _wait()
    begun, collecting, before = time.perf_counter(), 0.0, ppo.steps
    for _ in range(options.rounds):
        start = time.perf_counter()
        rollout = ppo.collect()
        _wait()
        collecting += time.perf_counter() - start
        ppo.update(rollout)
    _wait()
    seconds = time.perf_counter() - begun
    for env in copies:
        env.close()
    return [
        str(n),
        f"{ppo.n_envs} x {settings.steps}",
        f"{(ppo.steps - before) / seconds:,.0f}",
        f"{100 * collecting / seconds:.0f} %",
    ]


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--particles", default="1,16")
    arguments.add_argument("--envs", default="64")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--rollout", type=int)
    arguments.add_argument("--turns", type=int, default=1)
    arguments.add_argument("--network", default="impala", choices=sorted(NETWORKS))
    arguments.add_argument("--precision", default="bf16")
    options = arguments.parse_args()
    sizes = [int(text) for text in options.particles.split(",")]
    copies = [int(text) for text in options.envs.split(",")]
    place = machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    print(f"PPO, Starpilot level 0, {options.network}, {options.precision}; {place}\n")
    rows = [measure(n, envs, options) for n in sizes for envs in copies]
    print_table(
        ["N", "environments x steps", "environment steps per second", "of it collecting"], rows
    )


if __name__ == "__main__":
    main()
