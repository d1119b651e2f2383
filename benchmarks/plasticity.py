"""Do networks stop learning after many switches? Three cart-poles in turn, over several rounds.

    python benchmarks/plasticity.py [--rounds 4] [--seeds 10] [--steps 16384] [--workers 2]

The three carts of carts.py are learned one after another, round after round, in another order for
each seed. Prints for each round the area under the learning curve, dormant units and effective rank
of the last hidden layer (of the network with the largest weight, on states it has visited), and
mean |w|. A learner that loses plasticity has a smaller area in the last round than in the second
(in the first, everything is new). Intervals are Student's over seeds. `--out` keeps finished seeds,
and the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import random
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import nn

from carts import CARTS, Balancer, learn, learner
from orderless_lab.methods.learners.learner import heaviest_representation
from orderless_lab.plasticity import plasticity
from timing import machine, print_table

METHODS = ("ppo", "averaging", "weighted")
MEASURES = {"area": "area under the curve", "dormant": "dormant units",
            "effective_rank": "effective rank", "mean_abs_weight": "mean |w|"}  # fmt: skip


def run(
    method: str, seed: int, *, rounds: int, steps: int, particles: int
) -> dict[str, list[float]]:
    """Every measure `[rounds]`, averaged over the carts of a round."""
    torch.set_num_threads(1)
    order = random.Random(seed).sample(range(len(CARTS)), len(CARTS))
    ppo = learner(method, seed, particles, partial(Balancer, nn.ReLU))
    found: dict[str, list[float]] = {name: [] for name in MEASURES}
    for _ in range(rounds):
        seen = []
        for level in order:
            area = learn(ppo, level, steps)
            states = ppo.collect().observations.flatten(0, 1)
            layer = heaviest_representation(ppo.filter, states)
            seen.append({"area": area, **plasticity(*layer)})
        for name in MEASURES:
            found[name].append(float(np.mean([measures[name] for measures in seen])))
    ppo.env.close()
    return found


def interval(values: np.ndarray) -> str:
    """The mean over seeds `[seeds]` with its 95% interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.3f} [{values.mean() - half:+.3f}, {values.mean() + half:+.3f}]"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=4)
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--steps", type=int, default=16_384)
    arguments.add_argument("--particles", type=int, default=8)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--out", type=Path, default=Path("runs/plasticity.jsonl"))
    options = arguments.parse_args()
    settings = {"rounds": options.rounds, "steps": options.steps, "particles": options.particles}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {
        (r["method"], r["seed"]): r for r in map(json.loads, lines) if r["settings"] == settings
    }
    cells = [(m, s) for s, m in product(range(options.seeds), METHODS) if (m, s) not in done]
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        waits = {pool.submit(partial(run, *cell, **settings)): cell for cell in cells}
        for future in as_completed(waits):
            method, seed = waits[future]
            record = {"method": method, "seed": seed, "settings": settings, **future.result()}
            done[method, seed] = record
            with options.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
    switches = options.rounds * len(CARTS) - 1
    print(
        f"{switches} switches, {options.steps:,} steps a cart, {options.particles} particles, ",
        end="",
    )
    print(f"{options.seeds} seeds; {machine(torch.device('cpu'))}")
    last = options.rounds - 1
    for name, title in MEASURES.items():
        rows, grid = [], {}
        for method in METHODS:
            values = grid[method] = np.array([done[method, s][name] for s in range(options.seeds)])
            means = [f"{mean:.3f}" for mean in values.mean(0)]
            versus = "" if method == "ppo" else interval(values[:, last] - grid["ppo"][:, last])
            rows.append([method, *means, interval(values[:, last] - values[:, 1]), versus])
        rounds = [f"round {place + 1}" for place in range(options.rounds)]
        print(f"\n{title}\n")
        print_table(["method", *rounds, "last - second", "last, - ppo"], rows)


if __name__ == "__main__":
    main()
